// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/policysource"
)

const (
	// fileTimeout limits the time for one read of a policy file.
	fileTimeout = 10 * time.Second

	// reloadInterval is the time from the end of one read to the start of the next.
	reloadInterval = 10 * time.Second
)

// reloader reads policies repeatedly and replaces the policies in force. If a document
// is refused or cannot be read, the current policies stay in force.
type reloader struct {
	p       *cpuTrigger
	source  policysource.Source
	timeout time.Duration // limit for one read
	unread  int           // number of failed reads since the last successful read
	refused error         // fault of the last document; nil if it is valid
}

// newReloader returns the reloader for policies_from.
func (p *cpuTrigger) newReloader(ctx context.Context, host component.Host) (*reloader, error) {
	cfg := p.cfg.PoliciesFrom
	client := cfg.HTTP.Get()
	if client == nil {
		return &reloader{p: p, source: policysource.NewFile(cfg.File), timeout: fileTimeout}, nil
	}
	made, err := client.ToClient(ctx, host.GetExtensions(), p.telemetry)
	if err != nil {
		return nil, fmt.Errorf("policies_from.http: %w", err)
	}
	return &reloader{p: p, source: policysource.NewHTTP(made, client.Endpoint), timeout: client.Timeout}, nil
}

// first reads a policy file before the component starts. It returns an error if the file
// cannot be used and the configuration contains no policies.
func (r *reloader) first(ctx context.Context) error {
	if _, isFile := r.source.(*policysource.File); !isFile {
		return nil
	}
	if err := r.read(ctx); err != nil && len(r.p.cfg.Policies) == 0 {
		return fmt.Errorf("policies_from.file: %w; write the file, or set policies too, to start with", err)
	}
	return nil
}

// start starts the goroutine that reads policies. stop stops this goroutine and waits
// until it has ended, but does not wait for a file system that hangs.
func (r *reloader) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		collect.Repeat(ctx, func() time.Duration {
			_ = r.read(ctx) // read reports its error
			return r.p.reloadEvery
		})
	})
	return func() { cancel(); running.Wait(); r.source.Close() }
}

// read reads the policies once. If the policies have changed, read puts them in force. It
// reports errors, unless the context has ended.
func (r *reloader) read(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	document, changed, err := r.source.Read(limited)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		r.p.counters.AddPolicyRead(counters.PoliciesFailed)
		if r.unread++; r.unread == 1 {
			r.p.log.Warn("cannot read policies", zap.Stringer("from", r.source), zap.Error(err))
			r.p.health.set(policiesFault, fmt.Errorf("policies cannot be read, those in force stay: %w", err))
		}
		return err
	}
	if r.unread > 0 {
		r.p.log.Info("policies read again", zap.Stringer("from", r.source), zap.Int("failed", r.unread))
		r.unread = 0
	}
	outcome := counters.PoliciesUnchanged
	if changed {
		outcome = counters.PoliciesChanged
		r.refused = r.take(document)
	}
	if r.refused != nil {
		outcome = counters.PoliciesRefused
	}
	r.p.counters.AddPolicyRead(outcome)
	r.p.health.set(policiesFault, r.refused)
	return r.refused
}

// take puts the policies of a document in force, or returns the faults of the document.
func (r *reloader) take(document []byte) error {
	version := hotunitsextension.PolicyVersion(document)
	next, err := r.p.cfg.withPolicies(document)
	if err == nil {
		err = r.p.setPolicies(next, version)
	}
	if err != nil {
		r.p.log.Error("policies refused", zap.Stringer("from", r.source), zap.String("version", version), zap.Error(err))
		return fmt.Errorf("policies of %s refused, those before stay in force: %w", r.source, err)
	}
	if r.refused != nil {
		r.p.log.Info("policies accepted again", zap.Stringer("from", r.source), zap.String("version", version))
	}
	return nil
}

// policyFile describes the file of policies_from for components that edit the file.
func (p *cpuTrigger) policyFile(path string) hotunitsextension.PolicyFile {
	return hotunitsextension.PolicyFile{
		Reader: p.id, Path: path,
		Check: func(document []byte) error {
			if n := len(document); n > hotunitsextension.MaxPolicyFile {
				return fmt.Errorf("it has %d bytes, and at most %d are allowed", n, hotunitsextension.MaxPolicyFile)
			}
			_, err := p.cfg.withPolicies(document)
			return err
		},
		Doubts: func(document []byte) (all []string) {
			if next, err := p.cfg.withPolicies(document); err == nil {
				for _, d := range doubtsOf(next) {
					all = append(all, fmt.Sprintf("policy %s: %s over %v: %s", d.policy, d.monitor, d.threshold, d.why))
				}
			}
			return all
		},
		Version: func() string { return p.inForce.Load().version },
	}
}

// These are the keys of the faults in the component's status.
const (
	cgroupsFault  = "cgroups"
	policiesFault = "policies"
	storageFault  = "storage"
)

// health reports the component's status, which includes all current faults.
type health struct {
	host component.Host

	mu     sync.Mutex
	faults map[string]error
}

func newHealth(host component.Host) *health { return &health{host: host, faults: map[string]error{}} }

// set sets the fault with a key, or clears it if err is nil.
func (h *health) set(what string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.faults[what] == nil && err == nil {
		return
	}
	h.faults[what] = err
	all := errors.Join(h.faults[cgroupsFault], h.faults[policiesFault], h.faults[storageFault])
	if all == nil {
		componentstatus.ReportStatus(h.host, componentstatus.NewEvent(componentstatus.StatusOK))
		return
	}
	componentstatus.ReportStatus(h.host, componentstatus.NewRecoverableErrorEvent(all))
}
