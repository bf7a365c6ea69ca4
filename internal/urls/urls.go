// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package urls checks the URLs of configurations, and shows URLs without their secrets:
// a token may be in the query, and a password before the host.
package urls

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Parse returns the URL of a server; its errors do not show the text. example is a valid
// one.
func Parse(text, example string) (*url.URL, error) {
	if text == "" {
		return nil, fmt.Errorf("is needed, such as %s", example)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("is not http://HOST… or https://HOST…, such as %s", example)
	case u.User != nil:
		return nil, errors.New("must not have a user and password: use auth, with the basicauth extension, or headers")
	}
	return u, nil
}

// Shown returns a URL without user, password, query and fragment.
func Shown(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "an invalid URL"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath, Opaque: u.Opaque}).String()
}

// Redacted returns a text, which is shown by Shown if it is the URL of a server.
func Redacted(text string) string {
	if strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://") {
		return Shown(text)
	}
	return text
}

// Cause returns the cause of a request's error, without the URL that [url.Error] shows.
func Cause(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
