// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command caroots writes the root certificates that Mozilla trusts in PEM format. Images built
// from scratch contain no certificates, but OTLP over TLS needs root certificates. The
// certificates are from golang.org/x/crypto/x509roots, at the version that go.mod pins.
package main

import (
	"bufio"
	"encoding/pem"
	"log"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	out := bufio.NewWriter(os.Stdout)
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // trusted only for some certificates, which PEM cannot express
		}
		if err := pem.Encode(out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			log.Fatalf("write root certificates: %v", err)
		}
	}
	if err := out.Flush(); err != nil {
		log.Fatalf("write root certificates: %v", err)
	}
}
