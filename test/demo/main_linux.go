// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command demo is started by `make run`. It runs the collector and two small
// programs. One program becomes hot for a while, and the other program stays idle.
// The command prints the collector's log as sentences. At its end, it removes its
// cgroups and stops its processes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

func main() {
	collector := flag.String("collector", "bin/otelcol-hotprofile", "the distribution's binary")
	load := flag.String("load", "bin/load", "the load program's binary")
	config := flag.String("config", "config/quickstart.yaml", "the collector's configuration")
	flag.Parse()
	// The kernel kills the children when the thread that started them ends, even if the demo
	// is killed. The main thread is locked, so that it does not end before the demo.
	runtime.LockOSThread()
	if err := run(*collector, *load, *config); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(collector, load, config string) (err error) {
	if err := mayProfileOwn(); err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)

	out := &lines{to: os.Stderr}
	hot, cool := &program{name: "hot"}, &program{name: "cool"}
	scope := "cgroup"
	if cgErr := errors.Join(hot.ownCgroup(), cool.ownCgroup()); cgErr != nil {
		scope = "process"
		hot.shareCgroup()
		cool.shareCgroup()
		out.say("demo", "watches processes, since it may not create cgroups here: %v", cgErr)
	}
	defer func() { err = errors.Join(err, hot.stop(), cool.stop()) }()

	c := exec.Command(collector, "--config", config)
	c.Env = append(os.Environ(), "HOTPROFILE_SCOPE="+scope, "HOTPROFILE_LOG_ENCODING=json")
	c.Stdout, c.Stderr = os.Stdout, out
	out.say("demo", "demo-hot turns hot in 3 seconds for 20 seconds, demo-cool never does; Ctrl-C ends all")
	ended, err := start(c)
	if err != nil {
		return err
	}
	if err := hot.start(load, "-idle", "3s", "-busy", "20s", "-cool-duty", "0.1"); err != nil {
		return errors.Join(err, stop(c, ended))
	}
	if err := cool.start(load, "-idle", "1000000h"); err != nil {
		return errors.Join(err, stop(c, ended))
	}

	select {
	case <-interrupted:
		return stop(c, ended)
	case <-ended.done:
		return fmt.Errorf("the collector ended by itself: %w", ended.err)
	}
}

type program struct {
	name   string
	cgroup *scratch.Cgroup // nil if the program runs in the demo's cgroup
	cmd    *exec.Cmd
	ended  *ending
}

// ownCgroup creates a cgroup with one CPU for the program.
func (p *program) ownCgroup() (err error) {
	p.cgroup, err = scratch.Make(fmt.Sprintf("hotprofile-demo-%s-%d", p.name, os.Getpid()))
	if err != nil {
		return err
	}
	return p.cgroup.SetQuota(1)
}

func (p *program) shareCgroup() {
	if p.cgroup != nil {
		_ = p.cgroup.Remove()
		p.cgroup = nil
	}
}

func (p *program) start(load string, args ...string) (err error) {
	p.cmd = exec.Command(load, args...)
	if p.cgroup != nil {
		p.cmd = p.cgroup.Command(load, args...)
	}
	p.cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME=demo-"+p.name)
	p.cmd.Stdout, p.cmd.Stderr = os.Stdout, os.Stderr
	p.ended, err = start(p.cmd)
	return err
}

func (p *program) stop() (err error) {
	if p.ended != nil {
		err = stop(p.cmd, p.ended)
	}
	if p.cgroup != nil {
		err = errors.Join(err, p.cgroup.Remove())
	}
	return err
}

// ending is the result of a child. err is valid after done is closed.
type ending struct {
	done chan struct{}
	err  error
}

// start starts a child in its own process group, so that Ctrl-C interrupts only the demo.
// The demo then stops the children in order.
func start(cmd *exec.Cmd) (*ending, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	e := &ending{done: make(chan struct{})}
	go func() {
		e.err = cmd.Wait()
		close(e.done)
	}()
	return e, nil
}

// stop interrupts the child. If the child does not end within 20 seconds, stop kills it.
func stop(cmd *exec.Cmd, ended *ending) error {
	_ = cmd.Process.Signal(os.Interrupt)
	select {
	case <-ended.done:
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		<-ended.done
		return fmt.Errorf("%s did not end when interrupted and was killed", cmd.Path)
	}
	if ended.err != nil {
		return fmt.Errorf("%s: %w", cmd.Path, ended.err)
	}
	return nil
}
