// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/nativeformat"
	"github.com/hotprofile/hotprofile/internal/truncate"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// These are the paths of the API. Each kind of buffer has one path.
const (
	threadSamplesPath         = "/v1/dotnet/thread-samples"
	allocationSamplesPath     = "/v1/dotnet/allocation-samples"
	selectedThreadSamplesPath = "/v1/dotnet/selected-thread-samples"
)

const (
	resourceHeader = "Otel-Resource-Attributes"
	contentType    = "application/octet-stream"

	// maxInterval is longer than any reasonable interval.
	maxInterval = time.Hour
)

// kinds contains the kind of buffer of each path.
var kinds = map[string]nativeformat.Kind{
	threadSamplesPath:         nativeformat.ThreadSamples,
	allocationSamplesPath:     nativeformat.AllocationSamples,
	selectedThreadSamplesPath: nativeformat.SelectedThreadSamples,
}

// Bound limits the concurrent requests to maxRequests. Further requests wait for at most
// maxWait and are then refused.
func (in *Intake) Bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case in.slots <- struct{}{}:
		default:
			late := time.NewTimer(in.maxWait)
			defer late.Stop()
			select {
			case in.slots <- struct{}{}:
			case <-r.Context().Done():
				return
			case <-late.C:
				w.Header().Set("Retry-After", "1")
				problemOf(http.StatusServiceUnavailable, "%d requests are being served, as many as can be: drop the buffer", cap(in.slots)).write(w)
				return
			}
		}
		defer func() { <-in.slots }()
		next.ServeHTTP(w, r)
	})
}

// ServeHTTP receives one buffer.
func (in *Intake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, refused := in.serve(w, r)
	if refused != nil {
		refused.write(w)
		return
	}
	answer(w, http.StatusAccepted, "application/json", result)
}

func (in *Intake) serve(w http.ResponseWriter, r *http.Request) (Result, *problem) {
	kind, ok := kinds[r.URL.Path]
	if !ok {
		return Result{}, problemOf(http.StatusNotFound, "there is nothing but POST %s, %s and %s", threadSamplesPath, allocationSamplesPath, selectedThreadSamplesPath)
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return Result{}, problemOf(http.StatusMethodNotAllowed, "use POST")
	}
	if given, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || given != contentType {
		return Result{}, problemOf(http.StatusUnsupportedMediaType, "Content-Type is %q and must be %s", short(r.Header.Get("Content-Type")), contentType)
	}
	format, interval, refused := parametersOf(kind, r.URL)
	if refused != nil {
		return Result{}, refused
	}
	process, refused := in.identify(r.Context())
	if refused != nil {
		return Result{}, refused
	}
	body := in.memory.body()
	defer body.free()
	if refused := in.read(w, r, body); refused != nil {
		return Result{}, refused
	}
	result, err := in.add(format, interval, sender{process, strings.Join(r.Header.Values(resourceHeader), ",")}, body.bytes)
	return result, in.problemWith(w, format, result, err)
}

// problemWith returns the reason why a buffer is not accepted with status 202. It returns
// nil if the buffer is accepted.
func (in *Intake) problemWith(w http.ResponseWriter, format nativeformat.Format, result Result, err error) *problem {
	var fault *nativeformat.Error
	var p *problem
	switch {
	case result.NoRoom > 0:
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int((in.ExportInterval+time.Second-1)/time.Second))))
		p = problemOf(http.StatusServiceUnavailable, "both sample buffers are full, the next component is too slow: %d samples were lost; drop the buffer, do not send it again", result.NoRoom)
	case errors.As(err, &fault):
		p = problemOf(http.StatusBadRequest, "%v%s", fault, hint(format))
	case err != nil:
		p = problemOf(http.StatusBadRequest, "%v", err)
	case result.WrongTime > 0:
		p = problemOf(http.StatusBadRequest, "%d samples have an impossible time", result.WrongTime)
	default:
		return nil
	}
	p.Result = &result
	if fault != nil {
		p.Offset, p.Opcode, p.Expected, p.Found = &fault.Offset, &fault.Opcode, fault.Expected, &fault.Found
	}
	return p
}

// hint describes a common mistake of senders that makes the rest of a buffer unreadable.
// The buffer itself does not reveal this mistake.
func hint(f nativeformat.Format) string {
	switch {
	case f.Kind != nativeformat.ThreadSamples:
		return ""
	case f.FrequentSampling:
		return "; frequent_sampling=true is for services that run selective sampling beside thread sampling, no others"
	}
	return "; a service that runs selective sampling beside thread sampling has to send frequent_sampling=true"
}

// parametersOf parses the query.
func parametersOf(kind nativeformat.Kind, u *url.URL) (f nativeformat.Format, interval time.Duration, refused *problem) {
	bad := func(format string, args ...any) (nativeformat.Format, time.Duration, *problem) {
		return nativeformat.Format{}, 0, problemOf(http.StatusBadRequest, format, args...)
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("read the query: %v", err)
	}
	for name, values := range params {
		switch {
		case name != "interval" && name != "frequent_sampling":
			return bad("unknown parameter %q: there are interval and frequent_sampling", short(name))
		case len(values) != 1:
			return bad("%s: given %d times, must be given once", name, len(values))
		}
	}
	f.Kind = kind
	if params.Has("frequent_sampling") {
		yes, err := strconv.ParseBool(params.Get("frequent_sampling"))
		if err != nil {
			return bad("frequent_sampling: %q is not true or false", short(params.Get("frequent_sampling")))
		}
		f.FrequentSampling = yes && kind == nativeformat.ThreadSamples
	}
	if !params.Has("interval") {
		if kind == nativeformat.AllocationSamples {
			return f, 0, nil
		}
		return bad("interval: must be set to the sampling interval in milliseconds, as in ?interval=1000: without it the profile would have no period")
	}
	ms, err := strconv.ParseInt(params.Get("interval"), 10, 64)
	if err != nil || ms < 1 || ms > maxInterval.Milliseconds() {
		return bad("interval: %q is not a whole number of milliseconds from 1 to %d", short(params.Get("interval")), maxInterval.Milliseconds())
	}
	return f, time.Duration(ms) * time.Millisecond, nil
}

// short shortens a text from a request, for use in a message.
func short(s string) string { return truncate.Short(s, 64) }

// identify returns the process at the other end of a Unix socket. Over TCP, it returns the
// zero Identity.
func (in *Intake) identify(ctx context.Context) (processes.Identity, *problem) {
	client, unix := ctx.Value(clientKey{}).(Client)
	if !unix {
		return processes.Identity{}, nil
	}
	forbidden := func(format string, args ...any) (processes.Identity, *problem) {
		return processes.Identity{}, problemOf(http.StatusForbidden, format, args...)
	}
	switch {
	case client.Err != nil:
		return forbidden("the process that connected cannot be identified: %v", client.Err)
	case client.PID == 0:
		return forbidden("the process that connected is outside of the collector's pid namespace, so its unit cannot be identified: run the collector in the host's (docker run --pid=host, hostPID: true)")
	}
	now, err := in.identityOf(client.PID)
	switch {
	case errors.Is(err, processes.ErrEnded) || err == nil && now.Start != client.Start:
		return forbidden("process %d, which connected, has ended: connect again", client.PID)
	case err != nil:
		return forbidden("the process that connected cannot be identified: %v", err)
	}
	return now, nil
}

// read reads the body of a request.
func (in *Intake) read(w http.ResponseWriter, r *http.Request, into *body) *problem {
	err := into.read(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &tooLarge):
		return problemOf(http.StatusRequestEntityTooLarge, "the body has more than %d bytes; a buffer has %d and a little", tooLarge.Limit, nativeformat.MaxBuffer)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return problemOf(http.StatusRequestTimeout, "the body did not arrive in time (read_timeout)")
	case errors.Is(err, errNoMemory):
		w.Header().Set("Retry-After", "1")
		return problemOf(http.StatusServiceUnavailable, "%v: drop the buffer", err)
	}
	return problemOf(http.StatusBadRequest, "read the body: %v", err)
}
