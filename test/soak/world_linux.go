// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// world contains the profiled programs. Each program runs in a cgroup with a quota that
// leaves CPU time for other programs on the machine.
type world struct {
	name   string // the prefix of the names of the cgroups
	dir    string
	self   string // this program
	sender string // the program that sends data of .NET services
	data   string // recorded buffers of .NET services

	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	groups map[string]*scratch.Cgroup // by the kind of load
	frozen chan struct{}              // nil unless frozen; closed by thaw
	come   int                        // the number of cgroups that were created and removed again
	asked  map[int]int                // the number of manual triggers, by HTTP status
	errs   []error
}

// quotas are the CPU quotas of the loads, in cores.
var quotas = map[string]float64{
	"flooding": 0.3, "allocating": 0.15, "waiting": 0.1, "churning": 0.15, "pulsing": 0.15, "dotnet": 0.1,
}

func startWorld(w *world) error {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop, w.groups, w.asked = cancel, map[string]*scratch.Cgroup{}, map[int]int{}
	for _, what := range []string{"flooding", "allocating", "waiting", "churning", "pulsing"} {
		args := []string{"-role", what}
		if what == "allocating" {
			args = append(args, "-pprof-socket", w.pprofSocket())
		}
		if err := w.begin(what, quotas[what], w.self, args...); err != nil {
			return err
		}
	}
	// The sender ends by itself, even if it is not stopped.
	if err := w.begin("dotnet", quotas["dotnet"], w.sender, "-socket", w.socket(), "-senders", "3", "-rate", "5",
		"-for", "3h", "-resource", "service.name=soak-{sender}", w.data); err != nil {
		return err
	}
	w.running.Go(func() { w.comeAndGo(ctx) })
	return nil
}

func (w *world) socket() string { return filepath.Join(w.dir, "dotnet.sock") }

// pprofSocket returns the socket on which a load serves net/http/pprof.
func (w *world) pprofSocket() string { return filepath.Join(w.dir, "pprof.sock") }

// path returns the cgroup of a kind of load.
func (w *world) path(what string) string { return "/" + w.name + "-" + what }

// begin creates a cgroup and starts a program in it.
func (w *world) begin(what string, quota float64, program string, args ...string) error {
	group, err := scratch.Make(w.name + "-" + what)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.groups[what] = group
	if w.frozen != nil {
		err = group.Freeze(true)
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	// On a busy machine, a quota alone does not guarantee any CPU time.
	if err := errors.Join(group.SetQuota(quota), group.RaiseWeight(8)); err != nil {
		return err
	}
	return w.run(group, what, program, args...)
}

func (w *world) run(group *scratch.Cgroup, what, program string, args ...string) error {
	log, err := os.OpenFile(filepath.Join(w.dir, what+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := group.Command(program, args...)
	cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME=soak-"+what, "GOMAXPROCS=2")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the load %s: %w", what, err)
	}
	w.running.Go(func() { w.wait(what, cmd) })
	return nil
}

// wait waits until a load ends. A load is killed together
// with its cgroup, so a signal is not a failure.
func (w *world) wait(what string, cmd *exec.Cmd) {
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return
	}
	if what == "dotnet" { // the sender reports an error if the collector was away
		return
	}
	w.fail(fmt.Errorf("the load %s ended by itself: %w", what, err))
}

func (w *world) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, err)
}

// flood makes .NET services send without a break for the duration d.
func (w *world) flood(d time.Duration) error {
	w.mu.Lock()
	group := w.groups["dotnet"]
	w.mu.Unlock()
	return w.run(group, "dotnet", w.sender, "-socket", w.socket(), "-senders", "16", "-rate", "0",
		"-for", d.String(), "-resource", "service.name=soak-flood-{sender}", filepath.Join(w.data, "crowd"))
}

// comeAndGo repeatedly creates a cgroup that uses CPU
// time for a while, and removes the cgroup.
func (w *world) comeAndGo(ctx context.Context) {
	for n := 0; ; n++ {
		if w.thawed(ctx) != nil || sleep(ctx, time.Second) != nil {
			return
		}
		what := fmt.Sprintf("coming-%d", n)
		if err := w.begin(what, 0.15, w.self, "-role", "flooding"); err != nil {
			w.fail(err)
			return
		}
		err := sleep(ctx, 3*time.Second+rand.N(5*time.Second))
		w.mu.Lock()
		group := w.groups[what]
		delete(w.groups, what)
		w.come++
		w.mu.Unlock()
		if removed := group.Remove(); removed != nil {
			w.fail(removed)
		}
		if err != nil {
			return
		}
	}
}

// thawed waits until the loads are no longer frozen.
func (w *world) thawed(ctx context.Context) error {
	w.mu.Lock()
	frozen := w.frozen
	w.mu.Unlock()
	if frozen == nil {
		return nil
	}
	select {
	case <-frozen:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// freeze stops all loads until thaw is called.
func (w *world) freeze() error { return w.freezing(true) }
func (w *world) thaw() error   { return w.freezing(false) }

func (w *world) freezing(on bool) (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case on && w.frozen == nil:
		w.frozen = make(chan struct{})
	case !on && w.frozen != nil:
		close(w.frozen)
		w.frozen = nil
	}
	for _, group := range w.groups {
		err = errors.Join(err, group.Freeze(on))
	}
	return err
}

// ask opens the gate of a random load by hand.
func (w *world) ask(ctx context.Context, client *http.Client, port int) {
	w.mu.Lock()
	all := make([]string, 0, len(w.groups))
	for what := range w.groups {
		all = append(all, what)
	}
	w.mu.Unlock()
	if len(all) == 0 {
		return
	}
	unit := w.path(all[rand.IntN(len(all))])
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/v1/trigger?duration=3s&unit=%s", port, url.QueryEscape(unit)), nil)
	if err != nil {
		w.fail(err)
		return
	}
	status := 0 // 0 if there was no response
	if resp, err := client.Do(req); err == nil {
		resp.Body.Close()
		status = resp.StatusCode
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[status]++
}

// end stops the loads and removes their cgroups.
func (w *world) end() (err error) {
	w.stop()
	err = w.thaw()
	w.mu.Lock()
	groups := w.groups
	w.mu.Unlock()
	for _, what := range []string{"flooding", "allocating", "waiting", "churning", "pulsing", "dotnet"} {
		if group := groups[what]; group != nil {
			err = errors.Join(err, group.Remove())
		}
	}
	w.running.Wait()
	return err
}

// faults returns the failures of the loads themselves.
func (w *world) faults() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs...)
}
