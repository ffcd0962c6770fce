// The service as grpc-go meets it. It knows no proto of ours beforehand: it asks for them by
// reflection. Prints what it saw as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	health "google.golang.org/grpc/health/grpc_health_v1"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

const service = "throttlekit.v1.RateLimiter"

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

// What the server says of itself: the names of its services, and the methods of ours.
func reflected(ctx context.Context, conn *grpc.ClientConn) ([]string, protoreflect.MethodDescriptors) {
	stream := must(reflection.NewServerReflectionClient(conn).ServerReflectionInfo(ctx))
	ask := func(request *reflection.ServerReflectionRequest) *reflection.ServerReflectionResponse {
		must(0, stream.Send(request))
		return must(stream.Recv())
	}
	names := []string{}
	listed := ask(&reflection.ServerReflectionRequest{
		MessageRequest: &reflection.ServerReflectionRequest_ListServices{}})
	for _, one := range listed.GetListServicesResponse().GetService() {
		names = append(names, one.GetName())
	}
	told := ask(&reflection.ServerReflectionRequest{
		MessageRequest: &reflection.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service}})
	must(0, stream.CloseSend())
	var files descriptorpb.FileDescriptorSet
	for _, bytes := range told.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := &descriptorpb.FileDescriptorProto{}
		must(0, proto.Unmarshal(bytes, file))
		files.File = append(files.File, file)
	}
	registry := must(protodesc.NewFiles(&files))
	return names, methods(registry)
}

func methods(registry *protoregistry.Files) protoreflect.MethodDescriptors {
	return must(registry.FindDescriptorByName(service)).(protoreflect.ServiceDescriptor).Methods()
}

type refusal struct {
	Code    int    `json:"code"`
	Text    string `json:"text"`
	RetryMs int64  `json:"retry_ms,omitempty"`
}

func refused(err error) refusal {
	told, _ := status.FromError(err)
	found := refusal{Code: int(told.Code()), Text: told.Message()}
	for _, detail := range told.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			found.RetryMs = retry.GetRetryDelay().AsDuration().Milliseconds()
		}
	}
	return found
}

func main() {
	conn := must(grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials())))
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	services, methods := reflected(ctx, conn)
	check := methods.ByName("Check")
	call := func(request string, options ...grpc.CallOption) (json.RawMessage, error) {
		in, out := dynamicpb.NewMessage(check.Input()), dynamicpb.NewMessage(check.Output())
		must(0, protojson.Unmarshal([]byte(request), in))
		err := conn.Invoke(ctx, "/"+service+"/Check", in, out, options...)
		return must(protojson.Marshal(out)), err
	}
	plenty := `{"policy": "plenty", "key": "go"}`
	found := map[string]any{"services": services}
	found["check"] = must(call(plenty))
	found["gzip"] = must(call(plenty, grpc.UseCompressor(gzip.Name)))
	_, err := call(`{"policy": "nope", "key": "go"}`)
	found["unknown"] = refused(err)

	probe := health.NewHealthClient(conn)
	found["health"] = must(probe.Check(ctx, &health.HealthCheckRequest{})).GetStatus().String()
	// A stream that stays open until it is cancelled, or its deadline has come.
	watch := func(ctx context.Context) (health.Health_WatchClient, string, error) {
		stream := must(probe.Watch(ctx, &health.HealthCheckRequest{Service: service}))
		reply, err := stream.Recv()
		return stream, reply.GetStatus().String(), err
	}
	first, stop := context.WithCancel(ctx)
	soon, forget := context.WithTimeout(ctx, 3*time.Second)
	defer forget()
	cancelled, heard, err := watch(first)
	found["watch"] = must(heard, err)
	late, _, err := watch(soon)
	must(0, err)
	_, _, err = watch(ctx)
	found["refused"] = refused(err)
	stop()
	_, err = cancelled.Recv()
	found["cancelled"] = refused(err).Code
	_, err = late.Recv()
	found["deadline"] = refused(err).Code
	// Both places are free again, and the connection is as good as before.
	_, heard, err = watch(ctx)
	found["again"] = must(heard, err)
	found["last"] = must(call(plenty))
	fmt.Println(string(must(json.Marshal(found))))
}
