// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package urls

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

const secret = "s3cret"

func TestNoSecretIsShown(t *testing.T) {
	for text, want := range map[string]string{
		"https://me:s3cret@policies.example.com:8443/a%2Fb/node.yaml?token=s3cret#s3cret": "https://policies.example.com:8443/a%2Fb/node.yaml",
		"http://localhost":         "http://localhost",
		"http://s3cret%zz@host/":   "an invalid URL",
		"http://[::1]:80/?s3cret":  "http://[::1]:80/",
		"s3cret://\x7f/":           "an invalid URL",
		"http://host/?a=s3cret;&b": "http://host/",
	} {
		require.Equal(t, want, Shown(text))
		if text[:4] == "http" {
			require.Equal(t, want, Redacted(text))
		}
	}
	require.Equal(t, "/etc/policies.yaml?x", Redacted("/etc/policies.yaml?x"))
}

func TestErrorsDoNotShowTheURL(t *testing.T) {
	for _, text := range []string{"", "s3cret", "http://me:s3cret@host", "http://s3cret%zz", "ftp://s3cret/", "http:///?s3cret"} {
		_, err := Parse(text, "http://localhost:80")
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), secret)
	}
	u, err := Parse("https://host/path?q", "")
	require.NoError(t, err)
	require.Equal(t, "host", u.Hostname())

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:1/?token=s3cret", http.NoBody)
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(req) //nolint:bodyclose // there is no answer
	require.ErrorContains(t, err, secret)
	require.NotContains(t, Cause(err).Error(), secret)
	require.ErrorIs(t, Cause(err), context.Canceled)
	require.Equal(t, errors.ErrUnsupported, Cause(errors.ErrUnsupported))
}
