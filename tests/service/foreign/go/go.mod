module penstock.dev/foreign

go 1.25.0

require (
	github.com/summerwind/h2spec v2.2.1+incompatible
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250528174236-200df99c418a
	google.golang.org/grpc v1.74.2
	google.golang.org/protobuf v1.36.10
)

require (
	github.com/fatih/color v1.16.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/mattn/go-colorable v0.1.14 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	golang.org/x/net v0.40.0 // indirect
	golang.org/x/sys v0.42.0 // indirect
	golang.org/x/text v0.25.0 // indirect
)
