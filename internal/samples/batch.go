// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"iter"
	"math"
	"strings"
	"time"
	"unsafe"
)

// Label returns a label for [Key.Labels]. The key and the value end with a zero byte. Zero
// bytes in the value are replaced, because otherwise the rest of the value could pass for
// another label.
func Label(key, value string) string {
	return key + "\x00" + strings.ReplaceAll(value, "\x00", "?") + "\x00"
}

// Key contains the properties that all samples of one Sample share. Pointers are compared
// by identity, because samplers intern the objects.
type Key struct {
	Resource *Resource
	Type     *Type
	Stack    *Stack
	Thread   Thread
	// Link is the active span.
	Link Link
	// Labels contains the labels of the goroutine, or the attributes of the thread's span,
	// each in the form of [Label].
	Labels string
	// Transport is the transport protocol of a network sample. It is 0 for all other
	// samples.
	Transport Transport
	// Selected reports whether the .NET service samples this thread frequently.
	Selected bool
	// AllocType is the type of the allocated object, if known.
	AllocType string
	// Period is the sampling period in the unit of Type. Samples with different periods
	// belong to different profiles.
	Period int64
	// Window is the capture window of samples that were Sent. If it is nil, the times of
	// the samples define the window.
	Window *CaptureWindow
	// Capture is the time span in which samples were captured. It applies only to samples
	// whose type is not Sent. If Capture is nil, the time span is the whole capture window of
	// the batch.
	Capture *Capture
}

// taken is one sample. key is an index into Batch.keys.
type taken struct {
	time int64
	key  int32
}

// Batch contains the samples of one capture window. Its size is at most limit bytes.
// After Reset, the batch and its memory can be reused. It is not safe for concurrent use.
type Batch struct {
	// Start and End define the capture window, in nanoseconds since the Unix epoch. Every
	// sample is in [Start, End), except samples of types that are Sent.
	Start, End int64
	// Offset is the value that was added to monotonic times to get wall times.
	Offset int64

	limit  int
	size   int
	index  map[Key]int32
	keys   []Key
	counts []int32
	taken  []taken
	values []int64 // values of the samples of Valued types, in order
	stacks map[*Stack]struct{}
	// lost is the number of samples that the kernel lost, by sampler.
	lost map[string]int64
	// charged maps each process to its CPU time in this capture window, in nanoseconds.
	charged map[*Resource]int64
	// sentLocations and sentResources are the locations and resources of Sent samples.
	sentLocations map[*Location]struct{}
	sentResources map[*Resource]struct{}
}

const (
	sampleSize   = int(unsafe.Sizeof(taken{}))
	keySize      = 2*int(unsafe.Sizeof(Key{})) + 16 // an entry of keys and of index
	stackSize    = int(unsafe.Sizeof(Stack{})) + 16
	locationSize = int(unsafe.Sizeof(Location{})) + pointerSize
	pointerSize  = int(unsafe.Sizeof(uintptr(0)))
	valueSize    = 8
	lineSize     = int(unsafe.Sizeof(Line{}))
	entrySize    = 2 * pointerSize // an entry of a map of pointers
)

// NewBatch returns an empty batch of at most limit bytes.
func NewBatch(limit int) *Batch {
	return &Batch{
		limit:  limit,
		index:  make(map[Key]int32),
		stacks: make(map[*Stack]struct{}),
		lost:   make(map[string]int64),

		charged:       make(map[*Resource]int64),
		sentLocations: make(map[*Location]struct{}),
		sentResources: make(map[*Resource]struct{}),
	}
}

// Add adds one sample. It reports whether there was room for the sample. time is in
// nanoseconds since the Unix epoch. If there is no room, Add does not change the batch.
func (b *Batch) Add(k Key, time int64) bool { return b.AddValue(k, time, 0) }

// AddValue is like Add, but for samples of Valued types.
func (b *Batch) AddValue(k Key, time, value int64) bool {
	i, seen := b.index[k]
	need, newStack := b.need(k, seen)
	if b.size+need > b.limit {
		return false
	}
	b.size += need
	if newStack {
		b.stacks[k.Stack] = struct{}{}
	}
	if !seen {
		i = int32(len(b.keys))
		b.index[k] = i
		b.keys = append(b.keys, k)
		b.counts = append(b.counts, 0)
		if k.Type.Sent {
			b.hold(k.Resource, k.Stack)
		}
	}
	b.counts[i]++
	b.taken = append(b.taken, taken{time: time, key: i})
	if k.Type.Valued {
		b.values = append(b.values, value)
	}
	return true
}

// AddBoth adds two samples with the same time. It adds both samples, or no sample if the
// batch has no room for both.
func (b *Batch) AddBoth(k, other Key, time, value, otherValue int64) bool {
	_, seen := b.index[k]
	need, _ := b.need(k, seen)
	_, seen = b.index[other]
	more, newStack := b.need(other, seen)
	if newStack && other.Stack == k.Stack && !other.Type.Sent {
		more -= stackSize + len(k.Stack.Locations)*locationSize // need already includes the stack for k
	}
	if b.size+need+more > b.limit {
		return false
	}
	return b.AddValue(k, time, value) && b.AddValue(other, time, otherValue)
}

// need returns the number of bytes that one more sample of a key takes. It also reports
// whether the sample's stack is new.
func (b *Batch) need(k Key, seen bool) (need int, newStack bool) {
	need = sampleSize
	if k.Type.Valued {
		need += valueSize
	}
	if seen {
		return need, false
	}
	need += keySize + len(k.Thread.Name) + len(k.AllocType) + len(k.Labels)
	if _, ok := b.stacks[k.Stack]; !ok {
		newStack = true
		need += stackSize
		if k.Type.Sent {
			need += b.sentStack(k.Stack)
		} else {
			need += len(k.Stack.Locations) * locationSize
		}
	}
	if k.Type.Sent {
		need += b.sentResource(k.Resource)
	}
	return need, newStack
}

// sentStack returns the number of bytes that the locations of a stack add to the batch.
// If a new location occurs twice in the stack, it counts twice.
func (b *Batch) sentStack(s *Stack) (n int) {
	for _, l := range s.Locations {
		n += pointerSize
		if _, ok := b.sentLocations[l]; ok {
			continue
		}
		n += locationSize + entrySize
		for i := range l.Lines {
			n += lineSize + len(l.Lines[i].Function) + len(l.Lines[i].SystemName) + len(l.Lines[i].File)
		}
	}
	return n
}

func (b *Batch) sentResource(r *Resource) int {
	if _, ok := b.sentResources[r]; ok {
		return 0
	}
	n := int(unsafe.Sizeof(*r)) + entrySize
	for i := range r.Attributes {
		a := &r.Attributes[i]
		n += int(unsafe.Sizeof(*a)) + len(a.Key)
		if v, ok := a.Value.(string); ok {
			n += int(unsafe.Sizeof(v)) + len(v)
		}
	}
	return n
}

func (b *Batch) hold(r *Resource, s *Stack) {
	b.sentResources[r] = struct{}{}
	for _, l := range s.Locations {
		b.sentLocations[l] = struct{}{}
	}
}

// AddLost counts n samples that the kernel lost in this capture window. They are counted for
// the sampler of type t, because the processes of lost samples are unknown.
func (b *Batch) AddLost(t *Type, n uint64) {
	b.lost[t.sampler()] += int64(min(n, math.MaxInt64))
}

// Lost returns the number of samples that the sampler of a type lost.
func (b *Batch) Lost(t *Type) int64 { return b.lost[t.sampler()] }

// Charge records the CPU time of a process in this capture window,
// according to the kernel.
func (b *Batch) Charge(r *Resource, cpuTime time.Duration) { b.charged[r] = int64(cpuTime) }

// Charged returns the CPU time that Charge recorded, in nanoseconds. It then
// removes the CPU time, so that only one profile of the process gets it. If the CPU
// time is unknown, Charged returns 0.
func (b *Batch) Charged(r *Resource) int64 {
	defer delete(b.charged, r)
	return b.charged[r]
}

func (t *Type) sampler() string {
	if t.CountedAs != nil {
		return t.CountedAs.Sampler
	}
	return t.Sampler
}

// Size returns the size of the batch in bytes.
func (b *Batch) Size() int { return b.size }

// Count returns the number of samples in the batch.
func (b *Batch) Count() int { return len(b.taken) }

// Reset empties the batch and keeps its memory for the next capture window.
func (b *Batch) Reset() {
	clear(b.index)
	clear(b.stacks)
	clear(b.sentLocations)
	clear(b.sentResources)
	clear(b.lost)
	clear(b.charged)
	clear(b.keys) // releases the resources of processes that ended
	b.keys = b.keys[:0]
	b.counts = b.counts[:0]
	b.taken = b.taken[:0]
	b.values = b.values[:0]
	b.size = 0
	b.Start, b.End = 0, 0
}

// Keys yields each key and the number of its samples, in order of first use.
func (b *Batch) Keys() iter.Seq2[Key, int] {
	return func(yield func(Key, int) bool) {
		for i, k := range b.keys {
			if !yield(k, int(b.counts[i])) {
				return
			}
		}
	}
}

// Sample corresponds to a Sample of OTLP. It contains one key and the times of all
// samples with this key, in the order in which the samples were added. If the type is
// Valued, Sample also contains the values of the samples.
type Sample struct {
	Key
	Times  []int64
	Values []int64
}

// Samples groups the samples by key. Keys are in order of first use.
func (b *Batch) Samples() []Sample {
	times := make([]int64, len(b.taken))
	values := make([]int64, len(b.values))
	out := make([]Sample, len(b.keys))
	next, nextValue := 0, 0
	for i, k := range b.keys {
		n := int(b.counts[i])
		out[i] = Sample{Key: k, Times: times[next : next : next+n]}
		next += n
		if k.Type.Valued {
			out[i].Values = values[nextValue : nextValue : nextValue+n]
			nextValue += n
		}
	}
	valued := 0
	for _, e := range b.taken {
		s := &out[e.key]
		s.Times = append(s.Times, e.time)
		if s.Type.Valued {
			s.Values = append(s.Values, b.values[valued])
			valued++
		}
	}
	return out
}

// CapturedIn returns the part of the capture window that a Capture covers.
func (b *Batch) CapturedIn(c *Capture) (start, end int64) {
	start, end = b.Start, max(b.End, b.Start+1)
	if c == nil {
		return start, end
	}
	if from := c.From + b.Offset; from < end {
		start = max(start, from)
	}
	if until := c.Until(); until != math.MaxInt64 && until+b.Offset > start {
		end = min(end, until+b.Offset)
	}
	return start, end
}
