// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/perfevent/tracefs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// counting is a sink that counts samples and sums their values.
type counting struct{ n, value int64 }

func (s *counting) AddValue(_ samples.Key, _, value int64) bool {
	s.n++
	s.value += value
	return true
}
func (*counting) ReadUpTo(int64)                   {}
func (*counting) KernelLost(*samples.Type, uint64) {}
func (*counting) Paused() bool                     { return false }
func (*counting) Batch() uint64                    { return 1 }

// known returns a reader, a record of a call whose stack is
// already known, and the reader's sink.
func known(t testing.TB) (*reader, *perfevent.Record, *counting) {
	t.Helper()
	to := &counting{}
	s := New(Settings{
		Config: perftargets.Config{
			Table: processes.NewTable(processes.Config{}), Logger: zap.NewNop(), Now: monotonic,
			Stacks: unwind.NewStacks(unwind.StacksConfig{}),
		},
		Sink: to, MaxEventsPerSecond: 10000,
	})
	field := func(offset, size int) tracefs.Field { return tracefs.Field{Offset: offset, Size: size, Signed: true} }
	r := &s.reader
	r.sources = &sources{of: []source{{
		kind: sent, size: 64, every: 1, ret: field(20, 4), family: field(16, 2), protocol: field(18, 2),
	}}}
	r.pace = newPace(10000, 0)
	rec := &perfevent.Record{Attachment: &perfevent.Attachment{}, Hits: 3}
	r.pace.began(rec.Attachment, r.sources.of, false)
	rec.Type, rec.PID, rec.TID = perfevent.TypeSample, os.Getpid(), os.Getpid()
	for i := range uint64(30) {
		rec.Sample.User = append(rec.Sample.User, 0x400000+16*i)
	}
	rec.Sample.Raw = make([]byte, 28)
	binary.NativeEndian.PutUint16(rec.Sample.Raw[16:], familyIPv4)
	binary.NativeEndian.PutUint16(rec.Sample.Raw[18:], protocolTCP)
	binary.NativeEndian.PutUint32(rec.Sample.Raw[20:], 100)
	r.sample(rec)
	return r, rec, to
}

func TestCallOfAKnownStackAllocatesNothing(t *testing.T) {
	r, rec, to := known(t)
	require.Equal(t, counting{1, 300}, *to)
	require.Zero(t, testing.AllocsPerRun(1000, func() { r.sample(rec) }))
	require.EqualValues(t, 300, to.value/to.n)
}

func BenchmarkCall(b *testing.B) {
	r, rec, to := known(b)
	b.Run("call", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.sample(rec)
		}
	})
	// For comparison, this measures only the lookup of the stack.
	b.Run("baseline=stack", func(b *testing.B) {
		p := r.cfg.Table.Lookup(rec.PID, 0)
		b.ReportAllocs()
		for b.Loop() {
			if r.cfg.Stacks.Of(p, &rec.Sample) == nil {
				b.Fatal("no stack")
			}
		}
	})
	require.Positive(b, to.n)
}
