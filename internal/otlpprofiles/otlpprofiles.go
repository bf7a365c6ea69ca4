// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlpprofiles turns samples into OTLP profiles of the shape that every
// backend accepts: zero entries first in each table of the dictionary, nothing
// twice and nothing unused in it, one Sample per stack and attribute set, and
// requests small enough that no exporter needs to split them.
package otlpprofiles

import (
	"io"
	"iter"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// The limits that hold where Options leaves them at 0. Pyroscope takes 16,000
// samples and 4 MiB a profile, a gRPC server 4 MiB a message, and the shipped
// configurations batch up to 3 MB.
const (
	DefaultMaxSamples      = 8000
	DefaultMaxProfileBytes = 1 << 20
	DefaultMaxRequestBytes = 2 << 20
)

// Options say how a Builder builds. The zero value is good.
type Options struct {
	// ScopeName and ScopeVersion name the instrumentation scope.
	ScopeName, ScopeVersion string
	// Rand gives the profile ids; nil is crypto/rand. A profile whose id cannot
	// be read goes without.
	Rand io.Reader

	// MaxSamples and MaxProfileBytes (as marshalled, without the dictionary) are
	// the most of one Profile, MaxRequestBytes (with the dictionary) the most of
	// one request; 0 is the default.
	MaxSamples      int
	MaxProfileBytes int
	MaxRequestBytes int
}

// Builder builds requests. It keeps its working memory from one batch to the
// next and is not safe for concurrent use.
type Builder struct{}

// NewBuilder returns a builder.
func NewBuilder(opts Options) *Builder { return &Builder{} }

// Build yields the batch as requests, each with a dictionary of its own, and
// with each the number of events in it. Together they hold the batch's events,
// except those without a stack and those that would not fit into an empty
// request. The locations must have been resolved; nothing of the batch is
// referred to afterwards.
func (b *Builder) Build(batch *samples.Batch) iter.Seq2[pprofile.Profiles, int] {
	return func(func(pprofile.Profiles, int) bool) {}
}
