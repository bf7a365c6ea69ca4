// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/test/dotnettest"
)

// from returns the context of a request that was sent over a Unix socket.
func from(p Client) context.Context {
	return WithClient(context.Background(), p)
}

func TestTheClientAtTheOtherEndDecides(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	alive := processes.Identity{Process: procfs.Process{PID: 77, Start: 5}, Started: started, Cgroup: "/its"}
	c := dotnettest.Read(t, "web/000*")[0]
	for name, tc := range map[string]struct {
		client  Client
		now     processes.Identity
		err     error
		allowed bool
		detail  string
	}{
		"it is alive":              {client: Client{Process: procfs.Process{PID: 77, Start: 5}}, now: alive, allowed: true},
		"outside of our namespace": {client: Client{}, detail: "outside of the collector's pid namespace"},
		"the kernel did not tell":  {client: Client{Process: procfs.Process{PID: 77}, Err: errors.New("no idea")}, detail: "no idea"},
		"it has ended":             {client: Client{Process: procfs.Process{PID: 77, Start: 5}}, err: processes.ErrEnded, detail: "process 77, which connected, has ended"},
		"another one has its pid":  {client: Client{Process: procfs.Process{PID: 77, Start: 4}}, now: alive, detail: "process 77, which connected, has ended"},
		"it cannot be read about":  {client: Client{Process: procfs.Process{PID: 77, Start: 5}}, err: errors.New("denied"), detail: "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(in *Intake) {
				in.HostInfo.Name = "here"
				in.identityOf = func(pid int) (processes.Identity, error) {
					require.Equal(t, 77, pid)
					return tc.now, tc.err
				}
			})
			req := request(c.Path(), c.Bytes).WithContext(from(tc.client))
			req.Header.Set("Otel-Resource-Attributes", claims)
			got := r.do(t, req)
			if !tc.allowed {
				require.Equal(t, http.StatusForbidden, got.code)
				require.Contains(t, got.body.Detail, tc.detail)
				require.Empty(t, r.sink.events)
				return
			}
			require.Equal(t, http.StatusAccepted, got.code)
			attributes := raw(r.sink.events[0].Resource.Attributes)
			require.Equal(t, int64(77), attributes["process.pid"])
			require.Equal(t, "/its", attributes["process.linux.cgroup"])
			require.Equal(t, "here", attributes["host.name"])
			require.NotContains(t, attributes, "container.id")
		})
	}
}

func TestAProcessThatIsMovedHasItsNewCgroupFromTheNextRequestOn(t *testing.T) {
	now := processes.Identity{Process: procfs.Process{PID: 77, Start: 5}, Cgroup: "/a"}
	r := newRig(t, func(in *Intake) {
		in.identityOf = func(int) (processes.Identity, error) { return now, nil }
	})
	c := dotnettest.Read(t, "web/000*")[0]
	for _, at := range []string{"/a", "/b", "/a"} {
		now.Cgroup = at
		r.sink.free(-1)
		require.Equal(t, http.StatusAccepted, r.do(t, request(c.Path(), c.Bytes).WithContext(from(Client{Process: procfs.Process{PID: 77, Start: 5}}))).code)
		require.Equal(t, at, raw(r.sink.events[0].Resource.Attributes)["process.linux.cgroup"])
	}
}
