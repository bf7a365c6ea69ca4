// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package urls checks the URLs in configurations. It displays URLs without secrets, because
// the query may contain a token and the authority a password.
package urls

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Parse parses the URL of a server. example is a valid URL for the error messages. The
// messages do not show text, because it may contain secrets.
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

// Redacted returns Shown(text) if the text is an HTTP URL. It returns any other text
// unchanged.
func Redacted(text string) string {
	if strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://") {
		return Shown(text)
	}
	return text
}

// Cause returns the cause of a request's error without the URL that [url.Error] contains.
func Cause(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
