// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// BenchmarkRecord measures how the ring reader's cost of a sample grows with the depth of
// the stack and with the number of threads.
func BenchmarkRecord(b *testing.B) {
	handle := func(b *testing.B, records []*perfevent.Record) {
		r, sink := newReader(b, func(c *Settings) { c.ThreadName, c.ThreadID = true, true })
		for _, rec := range records {
			r.handle(rec)
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			r.handle(records[i%len(records)])
			if sink.batch.Count() == 1<<15 {
				sink.batch.Reset()
			}
			i++
		}
	}
	for _, depth := range []int{8, 32, 127} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			rec := record()
			known := rec.Sample.User
			rec.Sample.User = nil
			for i := range depth {
				rec.Sample.User = append(rec.Sample.User, known[i%len(known)])
			}
			handle(b, []*perfevent.Record{rec})
		})
	}
	for _, threads := range []int{1, 100} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			ids, end := make(chan int), make(chan struct{})
			defer close(end)
			var records []*perfevent.Record
			for range threads {
				go func() {
					runtime.LockOSThread() // the thread ends with the goroutine
					ids <- unix.Gettid()
					<-end
				}()
				rec := record()
				rec.PID, rec.TID = os.Getpid(), <-ids
				records = append(records, rec)
			}
			handle(b, records)
		})
	}
}
