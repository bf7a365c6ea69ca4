// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command demo is what `make run` starts: the collector on a configuration, and
// beside it two small programs, one that turns hot for a while and one that
// never does. It leaves nothing behind when it ends.
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

	"github.com/hotprofile/hotprofile/internal/hosttest/scratch"
)

func main() {
	collector := flag.String("collector", "bin/otelcol-hotprofile", "the distribution's binary")
	load := flag.String("load", "bin/load", "the load program's binary")
	config := flag.String("config", "config/quickstart.yaml", "the collector's configuration")
	flag.Parse()
	// The kernel ends our children when the thread that started them ends, so
	// that even a killed demo leaves no process: keep that thread.
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

	hot, cool := &program{name: "hot"}, &program{name: "cool"}
	scope := "cgroup"
	if cgErr := errors.Join(hot.ownCgroup(), cool.ownCgroup()); cgErr != nil {
		scope = "process"
		hot.shareCgroup()
		cool.shareCgroup()
		fmt.Fprintf(os.Stderr, "demo: each process is a unit of its own, since no cgroups can be made here: %v\n", cgErr)
	}
	defer func() { err = errors.Join(err, hot.stop(), cool.stop()) }()

	c := exec.Command(collector, "--config", config, "--feature-gates=service.profilesSupport")
	c.Env = append(os.Environ(), "HOTPROFILE_SCOPE="+scope)
	ended, err := start(c)
	if err != nil {
		return err
	}
	if err := hot.start(load, "-idle", "3s", "-busy", "20s"); err != nil {
		return errors.Join(err, stop(c, ended))
	}
	if err := cool.start(load, "-idle", "1000000h"); err != nil {
		return errors.Join(err, stop(c, ended))
	}
	fmt.Fprintln(os.Stderr, "demo: demo-hot turns hot in 3 seconds and stays so for 20; demo-cool never does. Ctrl-C ends all")

	select {
	case <-interrupted:
		return stop(c, ended)
	case <-ended.done:
		return fmt.Errorf("the collector ended by itself: %w", ended.err)
	}
}

// program is one of the two loads.
type program struct {
	name   string
	cgroup *scratch.Cgroup // nil where it shares ours
	cmd    *exec.Cmd
	ended  *ending
}

// ownCgroup gives the program a cgroup with one CPU.
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

// ending is how a child ended; err is valid once done is closed.
type ending struct {
	done chan struct{}
	err  error
}

// start starts a child in a process group of its own, so that Ctrl-C reaches us
// alone and the children are stopped in order.
func start(cmd *exec.Cmd) (*ending, error) {
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
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

// stop asks the child to end, and makes it end after a while.
func stop(cmd *exec.Cmd, ended *ending) error {
	_ = cmd.Process.Signal(os.Interrupt)
	select {
	case <-ended.done:
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		<-ended.done
		return fmt.Errorf("%s did not end when asked to and was killed", cmd.Path)
	}
	if ended.err != nil {
		return fmt.Errorf("%s: %w", cmd.Path, ended.err)
	}
	return nil
}
