// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"context"
	"errors"
	"slices"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension/internal/metadata"
	"github.com/hotprofile/hotprofile/internal/token"
)

// maxNamed is the maximum number of units that a log message names.
const maxNamed = 20

// HotUnits is the component. It is safe for concurrent use.
type HotUnits struct {
	cfg       *Config
	settings  component.TelemetrySettings
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder
	webhooks  []*webhook
	events    events
	readings  registry[ReadingsFunc]

	policyFiles registry[PolicyFile]

	watchers registry[chan struct{}]

	mu         sync.Mutex
	publishers []*publisher
	hot        []Unit // union of the publishers' sets, sorted; never modified, only replaced
}

func newExtension(set extension.Settings, cfg *Config) (*HotUnits, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	h := &HotUnits{cfg: cfg, settings: set.TelemetrySettings, log: set.Logger, telemetry: telemetry}
	err = telemetry.RegisterHotUnitsUnitsCallback(func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(int64(len(h.current())))
		return nil
	})
	return h, err
}

// Dependencies returns the extensions that must start before this extension.
// Webhooks use these extensions.
func (h *HotUnits) Dependencies() (ids []component.ID) {
	for _, w := range h.cfg.Webhooks {
		if auth := w.ClientConfig.Auth.Get(); auth != nil {
			ids = append(ids, auth.AuthenticatorID)
		}
		for _, m := range w.ClientConfig.Middlewares {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// Start starts the webhooks. The set of hot units is empty until a publisher adds units.
func (h *HotUnits) Start(ctx context.Context, host component.Host) error {
	for i, cfg := range h.cfg.Webhooks {
		w, err := h.startWebhook(ctx, cfg, cfg.name(i), host)
		if err != nil {
			return errors.Join(err, h.Shutdown(ctx))
		}
		h.webhooks = append(h.webhooks, w)
	}
	return nil
}

// Shutdown stops the webhooks and the metrics. Shutdown may be called
// without Start, and more than once.
func (h *HotUnits) Shutdown(ctx context.Context) error {
	var ending sync.WaitGroup
	for _, w := range h.webhooks {
		ending.Go(func() { w.shutdown(ctx) })
	}
	ending.Wait()
	h.webhooks = nil
	h.telemetry.Shutdown()
	return nil
}

// Publisher returns a new publisher. A component in two pipelines has two publishers with
// the same ID.
func (h *HotUnits) Publisher(id component.ID) Publisher {
	p := &publisher{all: h, id: id}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publishers = append(h.publishers, p)
	return p
}

// Hot returns the union of the sets of all publishers, sorted by name. The caller may keep
// and change the slice.
func (h *HotUnits) Hot() []Unit { return slices.Clone(h.current()) }

func (h *HotUnits) current() []Unit {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hot
}

// Watch returns a channel that receives a token when Hot changes, and at once if Hot is not
// empty. The channel holds one token, so a slow watcher sees only the latest set. The channel
// is never closed. stop ends the watch, and may be called twice.
func (h *HotUnits) Watch() (changed <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.hot) > 0 {
		c <- struct{}{}
	}
	return c, h.watchers.add(c)
}

// unite computes the union of the hot units of all publishers. If the union has changed,
// unite notifies the watchers. The caller holds the lock.
func (h *HotUnits) unite() (before, after []Unit) {
	before = h.hot
	for _, p := range h.publishers {
		after = append(after, p.hot...)
	}
	slices.SortFunc(after, Unit.compare)
	after = slices.Clip(slices.Compact(after))
	if slices.Equal(before, after) {
		return before, before
	}
	h.hot = after
	for _, w := range h.watchers.list() {
		token.Put(w)
	}
	return before, after
}

// publisher implements Publisher. all.mu guards its fields.
type publisher struct {
	all    *HotUnits
	id     component.ID
	hot    []Unit // sorted
	spare  []Unit // reused for the next set
	cut    int    // number of units that were cut from the last set
	closed bool
}

func (p *publisher) Publish(hot []Unit) {
	h := p.all
	h.mu.Lock()
	if p.closed {
		h.mu.Unlock()
		return
	}
	cut := max(0, len(hot)-MaxUnits)
	next := append(p.spare[:0], hot[:len(hot)-cut]...)
	slices.SortFunc(next, Unit.compare)
	if slices.Equal(next, p.hot) && cut == p.cut {
		p.spare = next
		h.mu.Unlock()
		return
	}
	episode := cut > 0 && p.cut == 0
	p.hot, p.spare, p.cut = next, p.hot, cut
	before, after := h.unite()
	h.mu.Unlock()

	if cut > 0 {
		h.telemetry.HotUnitsUnitsCut.Add(context.Background(), int64(cut))
	}
	if episode {
		h.log.Warn("too many hot units to publish", zap.Stringer("publisher", p.id), zap.Int("published", MaxUnits), zap.Int("cut", cut))
	}
	h.logChange(p.id, before, after)
}

func (p *publisher) Close() {
	p.Publish(nil)
	h := p.all
	h.mu.Lock()
	defer h.mu.Unlock()
	p.closed, p.spare = true, nil
	h.publishers = slices.DeleteFunc(h.publishers, func(other *publisher) bool { return other == p })
}

func (h *HotUnits) logChange(by component.ID, before, after []Unit) {
	entry := h.log.Check(zapcore.DebugLevel, "hot units changed")
	if entry == nil {
		return
	}
	heated, cooled := namesBeyond(before, after), namesBeyond(after, before)
	if len(heated)+len(cooled) > 0 {
		entry.Write(zap.Stringer("publisher", by), zap.Int("units", len(after)), zap.Strings("now_hot", heated), zap.Strings("not_hot", cooled))
	}
}

// namesBeyond returns the names of units that are not in a sorted set. It
// returns at most maxNamed names.
func namesBeyond(set, units []Unit) []string {
	out := []string{}
	for _, u := range units {
		if _, in := slices.BinarySearchFunc(set, u, Unit.compare); !in && len(out) < maxNamed {
			out = append(out, u.Name)
		}
	}
	return out
}
