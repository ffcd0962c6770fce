// The service as grpc-java meets it. It knows no proto of ours beforehand: it asks for them by
// reflection. Prints what it saw as JSON. Run as one file: java -cp 'libraries/*' Client.java

import com.google.gson.Gson;
import com.google.gson.JsonParser;
import com.google.protobuf.Any;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.util.JsonFormat;
import com.google.rpc.RetryInfo;
import io.grpc.CallOptions;
import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.protobuf.StatusProto;
import io.grpc.reflection.v1.ServerReflectionGrpc;
import io.grpc.reflection.v1.ServerReflectionRequest;
import io.grpc.reflection.v1.ServerReflectionResponse;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class Client {
  static final String SERVICE = "throttlekit.v1.RateLimiter";
  static ManagedChannel channel;
  static MethodDescriptor<DynamicMessage, DynamicMessage> check;
  static Descriptor asked;

  static List<String> reflect() throws Exception {
    BlockingQueue<ServerReflectionResponse> replies = new LinkedBlockingQueue<>();
    StreamObserver<ServerReflectionRequest> questions =
        ServerReflectionGrpc.newStub(channel)
            .serverReflectionInfo(
                new StreamObserver<>() {
                  public void onNext(ServerReflectionResponse reply) {
                    replies.add(reply);
                  }

                  public void onError(Throwable error) {
                    error.printStackTrace();
                  }

                  public void onCompleted() {}
                });
    questions.onNext(ServerReflectionRequest.newBuilder().setListServices("").build());
    questions.onNext(
        ServerReflectionRequest.newBuilder().setFileContainingSymbol(SERVICE).build());
    List<String> names = new ArrayList<>();
    replies
        .poll(30, TimeUnit.SECONDS)
        .getListServicesResponse()
        .getServiceList()
        .forEach(one -> names.add(one.getName()));
    var told = replies.poll(30, TimeUnit.SECONDS).getFileDescriptorResponse();
    questions.onCompleted();
    var file = FileDescriptorProto.parseFrom(told.getFileDescriptorProto(0));
    var method =
        FileDescriptor.buildFrom(file, new FileDescriptor[0])
            .findServiceByName("RateLimiter")
            .findMethodByName("Check");
    asked = method.getInputType();
    check =
        MethodDescriptor.<DynamicMessage, DynamicMessage>newBuilder()
            .setType(MethodDescriptor.MethodType.UNARY)
            .setFullMethodName(SERVICE + "/Check")
            .setRequestMarshaller(ProtoUtils.marshaller(DynamicMessage.getDefaultInstance(asked)))
            .setResponseMarshaller(
                ProtoUtils.marshaller(DynamicMessage.getDefaultInstance(method.getOutputType())))
            .build();
    return names;
  }

  static Object ask(String policy, CallOptions options) throws Exception {
    var request = DynamicMessage.newBuilder(asked);
    JsonFormat.parser().merge("{policy: '" + policy + "', key: 'java'}", request);
    var reply = ClientCalls.blockingUnaryCall(channel, check, options, request.build());
    return JsonParser.parseString(JsonFormat.printer().print(reply));
  }

  interface Step {
    void run() throws Exception;
  }

  static Map<String, Object> refused(Step step) throws Exception {
    try {
      step.run();
    } catch (StatusRuntimeException error) {
      Map<String, Object> found = new TreeMap<>();
      found.put("code", error.getStatus().getCode().value());
      found.put("text", String.valueOf(error.getStatus().getDescription()));
      var details = StatusProto.fromThrowable(error).getDetailsList();
      for (Any detail : details) {
        if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          found.put("retry_ms", delay.getSeconds() * 1000 + delay.getNanos() / 1000000);
        }
      }
      return found;
    }
    throw new IllegalStateException("it was not refused");
  }

  static Iterator<HealthCheckResponse> watch(HealthGrpc.HealthBlockingStub stub) {
    return stub.watch(HealthCheckRequest.newBuilder().setService(SERVICE).build());
  }

  public static void main(String[] words) throws Exception {
    channel = ManagedChannelBuilder.forTarget(words[0]).usePlaintext().build();
    Map<String, Object> found = new TreeMap<>();
    found.put("services", reflect());
    found.put("check", ask("plenty", CallOptions.DEFAULT));
    found.put("gzip", ask("plenty", CallOptions.DEFAULT.withCompression("gzip")));
    found.put("unknown", refused(() -> ask("nope", CallOptions.DEFAULT)));
    var probe = HealthGrpc.newBlockingStub(channel);
    var whole = probe.check(HealthCheckRequest.getDefaultInstance());
    found.put("health", whole.getStatus().name());

    // Streams that stay open until they are cancelled, or their deadline has come.
    var context = Context.current().withCancellation();
    var first = context.call(() -> watch(probe));
    found.put("watch", first.next().getStatus().name());
    var late = watch(probe.withDeadlineAfter(3, TimeUnit.SECONDS));
    late.next();
    found.put("refused", refused(() -> watch(probe).next()));
    context.cancel(null);
    found.put("cancelled", refused(first::next).get("code"));
    found.put("deadline", refused(late::next).get("code"));
    found.put("again", watch(probe).next().getStatus().name());
    found.put("last", ask("plenty", CallOptions.DEFAULT));
    System.out.println(new Gson().toJson(found));
    channel.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
  }
}
