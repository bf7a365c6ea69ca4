// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const testToken = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

func withToken(o *Options) { o.Token = testToken }

// manual is a fake of the manual trigger server.
type manual struct {
	opened  []store.Unit
	err     error
	refused map[string]int
}

func (m *manual) options(o *Options) {
	withToken(o)
	m.refused = map[string]int{}
	o.CanProfile = func(u store.Unit) bool { return u.Host == CheckoutHost }
	o.Profile = func(_ context.Context, u store.Unit) error {
		m.opened = append(m.opened, u)
		return m.err
	}
	o.CountRefused = func(reason string) { m.refused[reason]++ }
}

// post sends a form. headers contains pairs of a key and a value.
func post(t testing.TB, h http.Handler, path string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var profileCheckout = "/units/" + string(CheckoutID) + "/profile"

func TestAGateIsOpenedFromThePage(t *testing.T) {
	var m manual
	h := newTestServer(t, Demo(testNow), m.options)
	page := getPage(t, h, "/units/"+string(CheckoutID))
	form := find(page, "form", with("action", profileCheckout))
	require.Len(t, form, 1)
	require.Equal(t, "post", attributeOf(form[0], "method"))
	token := find(form[0], "input", with("name", "token"))
	require.Equal(t, testToken, attributeOf(token[0], "value"))

	w := post(t, h, profileCheckout, url.Values{"token": {testToken}}, "Sec-Fetch-Site", "same-origin", "Origin", "http://example.com")
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
	require.Equal(t, "/units/"+string(CheckoutID)+"?range=1h", w.Header().Get("Location"))
	require.Len(t, m.opened, 1)
	require.Equal(t, CheckoutID, m.opened[0].ID)

	m.err = errors.New("over budget: max_concurrent_units <script>")
	w = post(t, h, profileCheckout, url.Values{"token": {testToken}})
	require.Equal(t, http.StatusBadGateway, w.Code)
	require.Contains(t, w.Body.String(), "over budget: max_concurrent_units &lt;script&gt;")
}

func TestAUnitOfAnotherHostIsNotProfiledFromHere(t *testing.T) {
	var m manual
	demo := Demo(testNow)
	h := newTestServer(t, demo, m.options)
	for _, u := range demo.AllUnits {
		if u.Host == CheckoutHost {
			continue
		}
		require.Empty(t, find(getPage(t, h, "/units/"+string(u.ID)), "input", with("name", "token")))
		require.Equal(t, http.StatusForbidden, post(t, h, "/units/"+string(u.ID)+"/profile", url.Values{"token": {testToken}}).Code)
	}
	require.Equal(t, http.StatusNotFound, post(t, h, "/units/0000000000000000/profile", url.Values{"token": {testToken}}).Code)
	require.Empty(t, m.opened)
}

func TestWhatDoesNotComeFromAPageChangesNothing(t *testing.T) {
	var m manual
	h := newTestServer(t, Demo(testNow), m.options)
	good := url.Values{"token": {testToken}}
	for name, tc := range map[string]struct {
		form    url.Values
		headers []string
		counted string
	}{
		"no token":                     {url.Values{}, nil, RefusedToken},
		"a wrong token":                {url.Values{"token": {testToken[1:] + "A"}}, nil, RefusedToken},
		"an empty token":               {url.Values{"token": {""}}, nil, RefusedToken},
		"another website":              {good, []string{"Sec-Fetch-Site", "cross-site"}, RefusedOrigin},
		"another port of this host":    {good, []string{"Sec-Fetch-Site", "same-site"}, RefusedOrigin},
		"another origin, old browser":  {good, []string{"Origin", "http://evil.example"}, RefusedOrigin},
		"a sandboxed frame":            {good, []string{"Origin", "null"}, RefusedOrigin},
		"a body that is no form":       {good, []string{"Content-Type", "text/plain"}, RefusedToken},
		"a body that claims to be one": {good, []string{"Content-Type", "multipart/form-data; boundary=x"}, RefusedToken},
	} {
		t.Run(name, func(t *testing.T) {
			clear(m.refused)
			w := post(t, h, profileCheckout, tc.form, tc.headers...)
			require.Equal(t, http.StatusForbidden, w.Code, w.Body)
			require.Equal(t, map[string]int{tc.counted: 1}, m.refused)
			require.NotEmpty(t, w.Header().Get("Content-Security-Policy"))
		})
	}
	// A token in the URL would appear in logs and in the browser's history.
	require.Equal(t, http.StatusForbidden, post(t, h, profileCheckout+"?token="+testToken, url.Values{}).Code)
	large := url.Values{"token": {testToken}, "x": {strings.Repeat("a", maxForm)}}
	require.Equal(t, http.StatusRequestEntityTooLarge, post(t, h, profileCheckout, large).Code)
	require.Equal(t, http.StatusNotFound, get(t, h, profileCheckout).Code)
	require.Empty(t, m.opened)
}

func TestNothingChangesUnlessItIsAllowed(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	require.Empty(t, find(getPage(t, h, "/units/"+string(CheckoutID)), "form", with("method", "post")))
	for _, path := range []string{profileCheckout, "/policies"} {
		require.Equal(t, http.StatusForbidden, post(t, h, path, url.Values{"token": {""}}).Code, path)
		require.Equal(t, http.StatusForbidden, post(t, h, path, url.Values{"token": {testToken}}).Code, path)
	}
}

func TestPathsLeadNowhereElse(t *testing.T) {
	h := newTestServer(t, Demo(testNow), withToken)
	for _, path := range []string{
		"/static/../server.go", "/static/..%2fserver.go", "/static/%2e%2e/server.go", "/static//etc/passwd", "/static/", "/static/../../../../etc/passwd",
		"/units/..%2f..%2fetc%2fpasswd", "/units/%00", "/openings/../units", "/openings/..%2f..%2fconsole.db/profile.pb.gz",
	} {
		w := get(t, h, path)
		require.Contains(t, []int{http.StatusNotFound, http.StatusTemporaryRedirect, http.StatusMovedPermanently, http.StatusBadRequest}, w.Code, path)
		require.NotContains(t, w.Body.String(), "root:", path)
		require.NotContains(t, w.Body.String(), "package web", path)
		if to := w.Header().Get("Location"); to != "" {
			require.True(t, strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "//"), "%s: %s", path, to)
		}
	}
}
