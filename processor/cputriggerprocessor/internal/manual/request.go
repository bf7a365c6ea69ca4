// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hotprofile/hotprofile/internal/texts"
)

const (
	minDuration = time.Second
	maxDuration = 24 * time.Hour

	maxUnit   = 512 // bytes
	maxBody   = 4 << 10
	maxQuoted = 256 // bytes of an invalid value that the answer repeats
)

// readParams returns the parameters from the query, and from a form in the body.
func readParams(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/x-www-form-urlencoded" {
		// ParseForm ignores a body of another type, so the body must be empty.
		if n, _ := io.ReadFull(r.Body, make([]byte, 1)); n > 0 {
			return nil, badRequest("the body is %q and must be application/x-www-form-urlencoded, or empty with the parameters in the query", quotable(r.Header.Get("Content-Type")))
		}
	}
	if err := r.ParseForm(); err != nil {
		return nil, unreadable("parameters", err, "")
	}
	return r.Form, nil
}

// unreadable returns the answer to a request whose body cannot be read. If the body is
// too large, the answer contains the limit, followed by advice.
func unreadable(what string, err error, advice string) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &refusal{status: http.StatusRequestEntityTooLarge, why: fmt.Sprintf("the body is larger than %d bytes%s", tooLarge.Limit, advice)}
	}
	return badRequest("read the %s: %v", what, err)
}

// parse returns the unit and the duration of a request. A request that closes a gate has no
// duration. An unknown parameter is an error.
func parse(params url.Values, fallback time.Duration, closes bool) (unit string, d time.Duration, err error) {
	known, all := []string{"unit", "duration"}, "there are unit and duration"
	if closes {
		known, all = known[:1], "there is only unit"
	}
	for name, values := range params {
		switch {
		case !slices.Contains(known, name):
			return "", 0, badRequest("unknown parameter %q: %s", quotable(name), all)
		case len(values) != 1:
			return "", 0, badRequest("%s: given %d times, must be given once", name, len(values))
		}
	}
	unit = params.Get("unit")
	switch {
	case unit == "":
		return "", 0, badRequest("unit: must be set to a container's id, a cgroup's path or a pid")
	case len(unit) > maxUnit:
		return "", 0, badRequest("unit: has %d bytes, must have at most %d", len(unit), maxUnit)
	case !utf8.ValidString(unit) || strings.ContainsFunc(unit, unicode.IsControl):
		return "", 0, badRequest("unit: %q is not a container's id, a cgroup's path or a pid", unit)
	case !params.Has("duration"):
		return unit, fallback, nil
	}
	d, err = time.ParseDuration(params.Get("duration"))
	switch {
	case err != nil:
		return "", 0, badRequest("duration: %q is not a duration such as 30s", quotable(params.Get("duration")))
	case d < minDuration || d > maxDuration:
		return "", 0, badRequest("duration: %v is not between %v and %v", d, minDuration, maxDuration)
	}
	return unit, d, nil
}

func quotable(s string) string { return texts.Cut(s, maxQuoted) }
