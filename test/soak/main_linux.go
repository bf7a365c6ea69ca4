// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command soak runs the distribution under faults and checks that nothing is
// lost silently: what the receiver read is what the backend has, what is held,
// and what was counted as lost, to the event.
//
// The collector has a cgroup of its own with a limit of memory, small buffers,
// and programs around it that flood it. Its backend goes away, is slow, answers
// errors and comes back; it is killed, stopped and started again with what its
// queue has kept. Each run of it has to balance by itself, at the moment it is
// killed or after its shutdown, and all of them together with the backend. The
// last line that is printed is the equation; the exit status is 1 if it does not
// hold to the event, or if a bound is exceeded. In the end programs attack it that
// try to make it remember and read too much (testdata/strangers.c), beside one whose
// profile has to stay whole. It needs root, and cc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// Bounds of the collector, at any time.
const (
	memoryLimit    = 256 << 20
	maxGoroutines  = 500
	maxDescriptors = 2000
	// moreGoroutines is by how much they may grow once it is warm.
	moreGoroutines = 50
)

func main() {
	as := flag.String("role", "", "be a load instead: flooding, winding, allocating, waiting, churning, pulsing or short")
	pprofSocket := flag.String("pprof-socket", "", "as a load, serve net/http/pprof there")
	onlyStrangers := flag.Bool("strangers", false, "only the attack of strangers")
	minutes := flag.Float64("minutes", 1, "how long faults last; what starts, drains and ends comes on top")
	binary := flag.String("collector", "bin/otelcol-hotprofile", "the distribution")
	sender := flag.String("sender", "bin/dotnetsender", "the program that sends what .NET services send")
	data := flag.String("data", "testdata/dotnet", "what it sends")
	keep := flag.Bool("keep", false, "keep the collector's logs")
	flag.Parse()
	if *as != "" {
		play, ok := roles[*as]
		if !ok {
			fmt.Fprintf(os.Stderr, "soak: no role %q\n", *as)
			os.Exit(1)
		}
		if *pprofSocket != "" {
			go servePprof(*pprofSocket)
		}
		play()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &soak{binary: *binary, onlyStrangers: *onlyStrangers, length: time.Duration(*minutes * float64(time.Minute)), heaviest: map[string]int64{}, complaints: map[string]int{}}
	if err := s.prepareAndRun(ctx, *sender, *data, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// soak is one soak, from its preparation to its report.
type soak struct {
	binary  string
	length  time.Duration
	dir     string
	group   *scratch.Cgroup // the collector's
	world   *world
	backend *backend
	finals  *finals

	began      time.Time
	ledger     ledger
	weights    []weighed
	heaviest   map[string]int64 // gauges at their highest
	complaints map[string]int
	attacks    []*attack
	// onlyStrangers leaves out all but their attack.
	onlyStrangers bool
	broken        error // why it ended before its time
	left          int64 // in the queue of the exporter at the end, in its own unit
}

func (s *soak) prepareAndRun(ctx context.Context, sender, data string, keep bool) (err error) {
	if s.length < 30*time.Second {
		return fmt.Errorf("-minutes: %v is too short for every fault; half a minute is the least", s.length)
	}
	if s.dir, err = os.MkdirTemp("", "hotprofile-soak-"); err != nil {
		return err
	}
	if keep {
		progress("logs are in %s", s.dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	}
	for _, path := range []*string{&s.binary, &sender, &data} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("hotprofile-soak-%d", os.Getpid())
	if s.group, err = scratch.Make(name + "-collector"); err != nil {
		return fmt.Errorf("the collector needs a cgroup of its own, so run this as root: %w", err)
	}
	defer func() { err = errors.Join(err, s.group.Remove()) }()
	if err := errors.Join(s.group.LimitMemory(memoryLimit), s.group.RaiseWeight(8)); err != nil {
		return err
	}
	if s.onlyStrangers {
		if err := s.strangers(ctx); err != nil {
			return err
		}
		s.printAttack(os.Stdout)
		if faults := s.attackFaults(); len(faults) > 0 {
			return errors.New(strings.Join(faults, "; "))
		}
		return nil
	}
	s.backend = newBackend()
	if err := s.backend.peer.Start(); err != nil {
		return err
	}
	defer s.backend.peer.Stop()
	if s.finals, err = startFinals(); err != nil {
		return err
	}
	defer s.finals.stop()
	s.world = &world{name: name + "-load", dir: s.dir, self: self, sender: sender, data: data}
	defer func() { err = errors.Join(err, s.world.end()) }()
	if err := startWorld(s.world); err != nil {
		return err
	}
	s.began = time.Now()
	for _, a := range schedule(s.length) {
		if err := s.play(ctx, a); err != nil {
			s.broken = fmt.Errorf("%s: %w", a.title(), err)
			break // what there is until here is reported
		}
	}
	if s.broken == nil {
		if err := s.world.freeze(); err != nil {
			return err
		}
		if err := s.strangers(ctx); err != nil {
			s.broken = fmt.Errorf("strangers: %w", err)
		}
	}
	return s.report(os.Stdout)
}

func (a *scheduled) title() string { return fmt.Sprintf("%d. %s", a.number, a.name) }

// progress prints what is under way to standard error; standard output has only the
// report.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "soak: %s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}
