// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policysource

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheQueryOfAServerIsNotShown checks that the query of a URL is hidden, because the
// query may contain a token. The source's name is logged and is shown on the policies page.
func TestTheQueryOfAServerIsNotShown(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	h := NewHTTP(server.Client(), server.URL+"/node.yaml?token=s3cret")
	require.Equal(t, server.URL+"/node.yaml", h.String())
	for _, status = range []int{http.StatusServiceUnavailable, http.StatusFound} {
		_, _, err := h.Read(t.Context())
		require.ErrorContains(t, err, "get "+server.URL+"/node.yaml: status")
		require.NotContains(t, err.Error(), "s3cret")
	}
	server.Close()
	_, _, err := h.Read(t.Context())
	require.ErrorContains(t, err, "get "+server.URL+"/node.yaml: dial")
	require.NotContains(t, err.Error(), "s3cret")
}
