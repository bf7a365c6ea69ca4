// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// TestPyroscopeKeepsAllSamples sends the profiles of a unit with four
// workers to a real Pyroscope 2. After Pyroscope has compacted its
// blocks, its totals must equal the totals of the sent profiles.
func TestPyroscopeKeepsAllSamples(t *testing.T) {
	binary := os.Getenv("HOTPROFILE_PYROSCOPE")
	if binary == "" {
		t.Skip("run `make peers PYROSCOPE=PATH` with the program of Pyroscope 2")
	}
	t.Parallel()
	const service = "e2e-workers"
	p := startPyroscope(t, binary)
	peer := startPeer(t)
	c := pipeline{
		extensions: []string{"inline_attributes:"},
		receiver:   "{off_cpu: {when: always}}",
		trigger: fmt.Sprintf(`
    pre_trigger: 10s
    policies:
      - name: cpu
        match: {cgroup: %q}
        any_of: [{monitor: cpu_usage, threshold: 0.1, average_over: 5s}]
        duration: 90s
        cooldown: 1h`, ofThisTest(t)),
		exporters: []string{
			peer.exporter(),
			fmt.Sprintf(`otlp_http/pyroscope: {endpoint: %q, middlewares: [{id: inline_attributes}]}`, p.url),
		},
	}.start(t, freePort(t))
	unit := newCgroup(t, "workers")
	unit.SetQuota(t, 2*cores)
	for range 4 {
		startLoad(t, unit.Command(loadBinary, "-duty", "0.3", "-waiting", "2"), service)
	}
	begin := time.Now()
	c.wait(3*time.Minute, "gate closed", nil)
	c.stop()
	peer.stop()
	require.Empty(t, c.lines("Exporting failed. Dropping data."))

	sent, profiles := map[string]int64{}, 0
	for _, batch := range readProfiles(t, peer.grpcFile) {
		for _, rp := range batch.ResourceProfiles().All() {
			if name, _ := rp.Resource().Attributes().Get("service.name"); name.Str() != service {
				continue
			}
			for _, sp := range rp.ScopeProfiles().All() {
				for _, profile := range sp.Profiles().All() {
					profiles++
					sent[typeInPyroscope(batch.Dictionary(), profile)] += amountInPyroscope(profile)
				}
			}
		}
	}
	require.Len(t, sent, 3, "cpu, off_cpu and runqueue")
	require.Greater(t, profiles, 60)

	require.Eventually(t, func() bool { return p.compactions() > 0 }, 3*time.Minute, time.Second, "no compaction")
	for typ, amount := range sent {
		stored := p.total(t, typ, service, begin)
		t.Logf("%s: sent %d, stored %d", typ, amount, stored)
		require.InEpsilon(t, amount, stored, 0.0001, typ)
	}
}

// typeInPyroscope returns the name of the profile's type in Pyroscope's queries.
func typeInPyroscope(d pprofile.ProfilesDictionary, p pprofile.Profile) string {
	text := func(i int32) string { return d.StringTable().At(int(i)) }
	typ, unit := text(p.SampleType().TypeStrindex()), text(p.SampleType().UnitStrindex())
	period, periodUnit := text(p.PeriodType().TypeStrindex()), text(p.PeriodType().UnitStrindex())
	if typ == "samples" && period == "cpu" {
		return "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
	}
	return fmt.Sprintf("%s:%s:%s:%s:%s", period, typ, unit, period, periodUnit)
}

// amountInPyroscope returns the sum of a profile's values. For on-CPU samples it returns
// the CPU time, because Pyroscope stores CPU time.
func amountInPyroscope(p pprofile.Profile) (sum int64) {
	for _, s := range p.Samples().All() {
		if s.Values().Len() > 0 {
			sum += s.Values().At(0)
		} else {
			sum += int64(s.TimestampsUnixNano().Len()) * p.Period()
		}
	}
	return sum
}

// pyroscope is a running Pyroscope.
type pyroscope struct{ url, dir string }

func startPyroscope(t *testing.T, binary string) *pyroscope {
	t.Helper()
	port, gossip := freePort(t), freePort(t)
	p := &pyroscope{url: fmt.Sprintf("http://127.0.0.1:%d", port), dir: t.TempDir()}
	cmd := exec.Command(binary, "-architecture.storage=v2", "-self-profiling.disable-push=true", "-config.show_banner=false",
		"-server.http-listen-address=127.0.0.1", "-server.http-listen-port="+strconv.Itoa(port),
		// The gRPC port is Pyroscope's default, because
		// Pyroscope's components find each other there.
		"-server.grpc-listen-address=127.0.0.1", "-segment-writer.lifecycler.addr=127.0.0.1",
		"-memberlist.bind-addr=127.0.0.1", "-memberlist.bind-port="+strconv.Itoa(gossip))
	cmd.Dir = p.dir
	watch(t, "pyroscope", cmd)
	require.Eventually(t, func() bool {
		resp, err := http.Get(p.url + "/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, 2*time.Minute, time.Second)
	return p
}

// compactions returns the number of blocks that the compaction has written.
func (p *pyroscope) compactions() (n int) {
	_ = filepath.WalkDir(filepath.Join(p.dir, "data", "v2", "shared", "blocks"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return nil
	})
	return n
}

// total returns the sum of a service's values of one type since begin.
func (p *pyroscope) total(t *testing.T, typ, service string, begin time.Time) int64 {
	t.Helper()
	query, err := json.Marshal(map[string]any{
		"profileTypeID": typ, "labelSelector": fmt.Sprintf("{service_name=%q}", service),
		"start": begin.Add(-time.Minute).UnixMilli(), "end": time.Now().Add(time.Minute).UnixMilli(),
	})
	require.NoError(t, err)
	resp, err := http.Post(p.url+"/querier.v1.QuerierService/SelectMergeStacktraces", "application/json", bytes.NewReader(query))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	var answer struct {
		Flamegraph struct {
			Total int64 `json:"total,string"`
		} `json:"flamegraph"`
	}
	require.NoError(t, json.Unmarshal(body, &answer), "%s", body)
	return answer.Flamegraph.Total
}
