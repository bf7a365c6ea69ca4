// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/hotprofile/hotprofile/internal/boundedread"
)

// Outcome is the outcome of a pull.
type Outcome int

// The outcomes.
const (
	OK Outcome = iota
	Busy
	Invalid
	Refused
	Sampled
	Stopped
	Timeout
	TooLarge
	Unidentified
	Unreachable
)

// outcomes contains the values of the metric's attribute, and remedies for the user.
var outcomes = [...]struct{ name, help string }{
	// All samples of the profile were added. The profile may be empty.
	OK: {"ok", ""},
	// Another CPU profile of the program is being taken.
	Busy: {"busy", "something else takes CPU profiles of this program, and Go takes one at a time: turn one of the two off, or make interval longer"},
	// The response is not the requested profile.
	Invalid: {"invalid", "the endpoint has to be that of net/http/pprof, with the profile's name left out: http://HOST:PORT/debug/pprof"},
	// The endpoint answered with an error.
	Refused: {"refused", "check that the program serves net/http/pprof at this path, and that auth, headers and tls are what it asks for"},
	// A sampler (cpu or allocations) already samples the program. Backends would add the
	// values of the pulled profile to the sampler's values.
	Sampled: {"sampled", "cpu or allocations samples this program, and backends would add both up: take the profile out of profiles, or set keep_sampled: true"},
	// The collector stopped during the pull.
	Stopped: {"shutdown", ""},
	// The pull took too long.
	Timeout: {"timeout", "the program may be short of CPU time, or its server's WriteTimeout shorter than duration; a pull may take 10s longer than duration"},
	// The response exceeds a size limit.
	TooLarge: {"too_large", "a profile may have 16 MiB, and 256 MiB of memory once decoded: take it out of profiles, or make duration shorter"},
	// The process of the endpoint cannot be identified.
	Unidentified: {"unidentified", "name the process or its cgroup in the endpoint's target, or container.id in its resource"},
	// There was no response.
	Unreachable: {"unreachable", "check that the program runs and listens there"},
}

// String returns the value of the metric's attribute.
func (o Outcome) String() string { return outcomes[o].name }

// failure is the error of a pull whose outcome is known.
type failure struct {
	Outcome
	error
}

func (e *failure) Unwrap() error { return e.error }

// maxRefusal bounds the number of bytes read from an error response.
const maxRefusal = 512

// refusalOf returns the error for a response that is not a profile.
func refusalOf(resp *http.Response) error {
	message := "the endpoint answers " + strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode)
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // a part is enough for the log
	text := strings.TrimSpace(string(b))
	if text != "" {
		message += ": " + strconv.Quote(text)
	}
	if strings.Contains(text, busy) {
		return &failure{Busy, errors.New(message)}
	}
	return &failure{Refused, errors.New(message)}
}

// busy is the response of net/http/pprof while the runtime is taking another CPU profile.
const busy = "cpu profiling already in use"

// errSampled is the error for a profile that is not pulled, because a sampler already
// measures the process.
var errSampled = &failure{Sampled, errors.New("what it measures of this program is sampled")}

// outcomeOf returns the outcome of a pull from its error. stopped reports whether the
// puller was stopped.
func outcomeOf(err error, stopped bool) Outcome {
	var failed *failure
	var timeout net.Error
	switch {
	case err == nil:
		return OK
	case stopped:
		return Stopped
	case errors.Is(err, boundedread.ErrTooLarge):
		return TooLarge
	case errors.As(err, &failed):
		return failed.Outcome
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return Timeout
	case errors.Is(err, ErrUnidentified):
		return Unidentified
	default:
		return Unreachable
	}
}

// maxRedirects is the maximum number of redirects that are followed within a host.
const maxRedirects = 3

// errRedirected is the error for a redirect that is not followed.
var errRedirected = &failure{Refused, errors.New("the endpoint redirects")}

// SameHost is a function for http.Client.CheckRedirect. Only the configured host may
// receive credentials and pulls.
func SameHost(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		return fmt.Errorf("%w to another host, %s, which is not followed: set endpoint to it", errRedirected, req.URL.Host)
	}
	if len(via) > maxRedirects {
		return fmt.Errorf("%w more than %d times: set endpoint to where its profiles are", errRedirected, maxRedirects)
	}
	return nil
}
