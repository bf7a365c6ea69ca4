// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command soak runs the distribution under faults. It checks that
// no event is lost silently. Each event that the receiver read
// must be in the backend, be held, or be counted as lost.
//
// The collector runs in a cgroup with a memory limit. It has small buffers, and other
// programs flood it. The backend goes away, becomes slow, answers with errors, and comes
// back. The collector is killed or stopped, and is started again with the contents of its
// queue. The counters of each run must balance when the collector is killed or after its
// shutdown. The counters of all runs together must balance with the backend.
//
// The last line of the output is the equation. The exit status is 1 if
// the equation does not hold exactly or if a bound is exceeded.
//
// In the end, programs attack the collector and try to make it remember and
// read too much (testdata/strangers.c). The profile of a program that runs
// beside them must stay complete. The command needs root and cc.
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

// The collector must stay within these bounds at any time.
const (
	memoryLimit    = 256 << 20
	maxGoroutines  = 500
	maxDescriptors = 2000
	// moreGoroutines is the maximum growth of the number of goroutines after the warm-up.
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
	group   *scratch.Cgroup // the cgroup of the collector
	world   *world
	backend *backend
	finals  *finals

	began      time.Time
	ledger     ledger
	weights    []weighed
	heaviest   map[string]int64 // the highest values of gauges
	complaints map[string]int
	attacks    []*attack
	// onlyStrangers skips everything except for the attack of strangers.
	onlyStrangers bool
	broken        error // the error that ended the soak early
	left          int64 // bytes in the exporter's queue at the end
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
			break // the report covers everything up to here
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

// progress prints the current step to standard
// error. Standard output is only for the report.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "soak: %s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}
