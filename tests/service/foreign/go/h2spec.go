//go:build tools

// Beside the client: the conformance tests of HTTP/2, so that go.sum pins what they are built of.
package main

import _ "github.com/summerwind/h2spec/cmd/h2spec"
