// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// TestSeriesOfThreadsAndOfProcesses counts the series in a backend that creates series
// from labels. There is one series per thread name. Processes with different text
// attributes also have different series.
func TestSeriesOfThreadsAndOfProcesses(t *testing.T) {
	const threads, workers = 200, 20
	stacks := []*samples.Stack{managed("A()"), managed("B()"), managed("C()")}
	for name, tc := range map[string]struct {
		named bool // thread_attributes: [thread.name], the default
		fill  func(add func(r *samples.Resource, thread string))
		want  int
	}{
		"200 threads of one process, each with a name of its own": {true, func(add func(*samples.Resource, string)) {
			r := resource(1)
			for i := range threads {
				add(r, fmt.Sprintf("http-ni..exec-%d", i))
			}
		}, threads},
		"the same without thread names": {false, func(add func(*samples.Resource, string)) {
			r := resource(1)
			for i := range threads {
				add(r, fmt.Sprintf("http-ni..exec-%d", i))
			}
		}, 1},
		"20 forked workers, each with its own process.creation.time": {true, func(add func(*samples.Resource, string)) {
			for i := range workers {
				r := resource(i)
				r.Attributes = append([]samples.Attribute{{Key: "process.creation.time", Value: fmt.Sprintf("2026-11-21T17:00:%02dZ", i)}}, r.Attributes...)
				add(r, "gunicorn")
			}
		}, workers},
		"20 forked workers once process.creation.time is removed": {true, func(add func(*samples.Resource, string)) {
			for i := range workers {
				add(resource(i), "gunicorn")
			}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBatch()
			tc.fill(func(r *samples.Resource, thread string) {
				if !tc.named {
					thread = ""
				}
				for i, s := range stacks {
					b.Add(samples.Key{Resource: r, Type: samples.OnCPU, Stack: s, Period: period, Thread: samples.Thread{Name: thread}}, start+int64(i))
				}
			})
			series := map[string]struct{}{}
			for p := range NewBuilder(options()).Build(b) {
				conformancetest.CheckFatal(t, p, conformancetest.Options{})
				conformancetest.Series(series, p)
			}
			require.Len(t, series, tc.want)
		})
	}
}
