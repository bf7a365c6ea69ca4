// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"testing"

	"github.com/google/pprof/profile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// FuzzProfile checks that a response is either refused or converted to profiles that
// every backend accepts, whatever the endpoint sends.
func FuzzProfile(f *testing.F) {
	f.Add(bytesOf(f, pprofOf(nil)))
	f.Add(bytesOf(f, pprofOf(func(p *profile.Profile) {
		p.Sample[0].Label = map[string][]string{"trace_id": {"0102030405060708090a0b0c0d0e0f10"}, "span_id": {"0102030405060708"}}
		p.Location[0].Mapping = nil
	})))
	f.Add([]byte{fieldSample<<3 | 2, 2, 10, 0})
	f.Add(zeros(100))
	f.Fuzz(func(t *testing.T, body []byte) {
		const limit = 1 << 20
		p, err := decode(body, limit)
		if err != nil {
			return
		}
		for _, k := range Kinds() {
			s := newSink()
			c := pulled{kind: k, profile: p, window: samples.CaptureWindow{Start: 1e18, End: 1e18 + 1e9}, resource: &samples.Resource{PID: 1}, frames: samples.FrameGo}
			if _, _, err := c.emit(s); err != nil {
				continue
			}
			for out := range otlpprofiles.NewBuilder(otlpprofiles.Options{}).Build(s.batch) {
				conformancetest.CheckFatal(t, out, conformancetest.Options{})
			}
		}
	})
}
