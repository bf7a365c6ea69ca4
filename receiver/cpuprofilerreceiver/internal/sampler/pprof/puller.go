// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/boundedread"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/urls"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Subject is the process or unit that an endpoint's profiles belong to.
type Subject struct {
	Resource *samples.Resource
	// Unit identifies the unit. It is the zero value if the unit is unknown.
	Unit processes.Identity
	// Frames is the type of the subject's frames.
	Frames samples.FrameType
	// PIDs lists the processes. It is empty if only attributes identify the unit.
	PIDs []int
}

// ErrUnidentified is returned when the process of an endpoint cannot be identified.
var ErrUnidentified = errors.New("the process of this endpoint cannot be identified")

// Settings configures a puller.
type Settings struct {
	*Config
	// URL is the endpoint without the name of a profile. Client must not follow redirects
	// to other hosts (see SameHost).
	URL    *url.URL
	Client *http.Client
	// Find identifies the process. It is called before each round. If the unit is unknown,
	// Find may return a subject without a unit together with ErrUnidentified.
	Find func(ctx context.Context) (Subject, error)
	// Hot returns the hot units. It is nil if the endpoint is always pulled. Changed
	// receives a value when the hot units change. Look is the time between two calls of
	// Find while any unit is hot.
	Hot     func() []hotunitsextension.Unit
	Changed <-chan struct{}
	Look    time.Duration
	// Unwatch stops the notifications on Changed.
	Unwatch func()
	// Sampled maps the name of a profile to the processes whose data a sampler already
	// measures. The profile is not pulled from these processes. Sampled may be nil.
	Sampled map[string]*sampler.Sampled
	// Decoding is locked while a profile is decoded. It is shared by all pullers, so that
	// only one profile is decoded at a time.
	Decoding *sync.Mutex
	Sink     sampler.SentSink
	// Count is called for each pull. NoRoom is called with the number of events that did
	// not fit into the sink.
	Count  func(Outcome)
	NoRoom func(Kind, int)
	Logger *zap.Logger
	Now    func() time.Time
}

// puller pulls the profiles of one endpoint.
type puller struct {
	cfg    Settings
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	failing map[string]Outcome // by kind; "" stands for identifying the process
	full    bool               // samples do not fit into the sink
}

// New returns a puller that has not started.
func New(cfg Settings) *puller {
	return &puller{cfg: cfg, cancel: func() {}, failing: make(map[string]Outcome)}
}

// Start starts pulling.
func (p *puller) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.done.Go(func() { p.run(ctx) })
}

// Stop cancels the pulls in progress and waits for them.
func (p *puller) Stop() {
	p.cancel()
	p.done.Wait()
	if p.cfg.Unwatch != nil {
		p.cfg.Unwatch()
	}
	p.cfg.Client.CloseIdleConnections()
}

func (p *puller) run(ctx context.Context) {
	var last time.Time // start of the last round
	was := false       // whether the unit was hot in the last round
	for ctx.Err() == nil {
		pull, subject := p.look(ctx)
		now := p.cfg.Now()
		if pull && (!was || now.Sub(last) >= p.cfg.Interval) {
			last = now
			p.round(ctx, subject)
		}
		was = pull
		wait := p.cfg.Look
		if pull {
			wait = max(0, last.Add(p.cfg.Interval).Sub(p.cfg.Now()))
			if p.cfg.Hot != nil { // the unit may stop being hot and become hot again before the interval ends
				wait = min(wait, p.cfg.Look)
			}
		}
		if !p.sleep(ctx, wait) {
			return
		}
	}
}

// sleep waits for d, or until the hot units change. It returns false if the puller must
// stop.
func (p *puller) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.cfg.Changed:
	case <-ctx.Done():
		return false
	}
	return true
}

// look reports whether to pull now, and returns the subject of the profiles.
func (p *puller) look(ctx context.Context) (bool, Subject) {
	if p.cfg.Hot != nil && len(p.cfg.Hot()) == 0 {
		return false, Subject{}
	}
	limited, cancel := context.WithTimeout(ctx, p.cfg.ClientConfig.Timeout)
	defer cancel()
	subject, err := p.cfg.Find(limited)
	if err == nil && p.cfg.Hot != nil && subject.Unit == (processes.Identity{}) {
		err = fmt.Errorf("%w, so it is not known whether its unit is hot", ErrUnidentified)
	}
	if err != nil {
		p.ended("", outcomeOf(err, ctx.Err() != nil), err)
		// Without Hot, a profile without a unit is pulled too, because cpu_trigger handles
		// such profiles.
		return p.cfg.Hot == nil && errors.Is(err, ErrUnidentified) && subject.Resource != nil, subject
	}
	p.ended("", OK, nil)
	u := &subject.Unit
	return p.cfg.Hot == nil || sampler.IsHot(p.cfg.Hot(), u.Process, u.Cgroup, u.ContainerID), subject
}

// round pulls each profile once. All profiles are pulled at the same time, so that timed
// profiles have the same window.
func (p *puller) round(ctx context.Context, subject Subject) {
	var all sync.WaitGroup
	for _, name := range p.cfg.Profiles {
		k, _ := KindOf(name)
		all.Go(func() {
			err := p.pull(ctx, k, subject)
			p.ended(k.Name, outcomeOf(err, ctx.Err() != nil), err)
		})
	}
	all.Wait()
}

// pull pulls one profile and adds its samples. It drops the profile if a sampler measured
// the same data of the process shortly before or during the pull.
func (p *puller) pull(ctx context.Context, k Kind, subject Subject) error {
	if p.cfg.Sampled[k.Name].Within(subject.PIDs, p.cfg.Duration) {
		return errSampled
	}
	timeout := p.cfg.ClientConfig.Timeout
	at := p.cfg.URL.JoinPath(k.Name)
	if k.Timed {
		timeout += p.cfg.Duration
		at.RawQuery = "seconds=" + strconv.FormatInt(int64(p.cfg.Duration/time.Second), 10)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return err
	}
	begin := p.cfg.Now()
	resp, err := p.cfg.Client.Do(req)
	if err != nil {
		return urls.Cause(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusalOf(resp)
	}
	body, err := boundedread.All(resp.Body, maxSize)
	if err != nil {
		return err
	}
	end := p.cfg.Now()
	if p.cfg.Sampled[k.Name].Within(subject.PIDs, end.Sub(begin)) {
		return errSampled
	}
	return p.convert(k, subject, body, samples.CaptureWindow{Start: begin.UnixNano(), End: end.UnixNano()})
}

// convert decodes a profile and adds its samples. The window uses this host's clock,
// because the program may use another clock.
func (p *puller) convert(k Kind, subject Subject, body []byte, window samples.CaptureWindow) error {
	p.cfg.Decoding.Lock()
	defer p.cfg.Decoding.Unlock()
	decoded, err := decode(body, maxSize)
	if err != nil {
		return &failure{Invalid, fmt.Errorf("decode the profile: %w", err)}
	}
	if d := decoded.DurationNanos; k.Timed && d > 0 {
		window.Start = max(window.Start, window.End-d)
	}
	window.End = max(window.End, window.Start+1)
	c := pulled{kind: k, profile: decoded, window: window, resource: subject.Resource, frames: subject.Frames}
	added, noRoom, err := c.emit(p.cfg.Sink)
	if noRoom > 0 {
		p.cfg.NoRoom(k, noRoom)
	}
	p.logRoom(added, noRoom)
	if err != nil {
		return &failure{Invalid, fmt.Errorf("read the profile: %w", err)}
	}
	return nil
}

// ended counts the outcome of a pull and logs changes. It logs when pulls start to fail,
// when they fail differently, and when they succeed again. Identifying the process counts
// as a pull only if it fails.
func (p *puller) ended(kind string, o Outcome, err error) {
	if kind != "" || o != OK {
		p.cfg.Count(o)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.failing[kind]
	if o == was || o == Stopped {
		return
	}
	p.failing[kind] = o
	fields := []zap.Field{zap.String("endpoint", p.cfg.URL.String())}
	if kind != "" {
		fields = append(fields, zap.String("profile", kind))
	}
	if o == OK {
		p.cfg.Logger.Info("pulling a pprof endpoint succeeds again", append(fields, zap.Stringer("was", was))...)
		return
	}
	message := "pulling a pprof endpoint failed"
	switch {
	case o == Sampled:
		message = "not pulling a profile of a program that is sampled"
	case o == Unidentified && p.cfg.Hot == nil:
		message = "pulling a pprof endpoint without its process"
	}
	p.cfg.Logger.Warn(message, append(fields, zap.Stringer("outcome", o), zap.Error(err), zap.String("help", outcomes[o].help))...)
}

// logRoom logs when samples no longer fit into the sink, and when they fit again.
func (p *puller) logRoom(added, noRoom int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case noRoom > 0 && !p.full:
		p.full = true
		p.cfg.Logger.Warn(sampler.MsgThreadsFull,
			zap.String("of", "pprof endpoint"), zap.String("endpoint", p.cfg.URL.String()), zap.Int("samples_lost", noRoom))
	case noRoom == 0 && added > 0 && p.full:
		p.full = false
		p.cfg.Logger.Info("buffers have room for samples of a pprof endpoint again", zap.String("endpoint", p.cfg.URL.String()))
	}
}
