// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

var testNow = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

// newTestServer returns a server for the pages of a store. The server's clock always
// returns testNow.
func newTestServer(t testing.TB, m *Memory, change ...func(*Options)) http.Handler {
	t.Helper()
	o := Options{Store: m, Now: func() time.Time { return testNow }, Version: "0.0.1", CountRefused: func(string) {}, readTimeout: time.Hour}
	for _, c := range change {
		c(&o)
	}
	return New(o)
}

func get(t testing.TB, h http.Handler, url string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	return w
}

// getPage returns the parsed HTML of a page. The page must exist.
func getPage(t testing.TB, h http.Handler, url string) *html.Node {
	t.Helper()
	w := get(t, h, url)
	require.Equal(t, http.StatusOK, w.Code, "%s: %s", url, w.Body)
	require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
	return parse(t, w.Body)
}

func parse(t testing.TB, r io.Reader) *html.Node {
	t.Helper()
	tree, err := html.Parse(r)
	require.NoError(t, err)
	return tree
}

// find returns the elements below n that have the tag and meet all conditions. The
// tag "*" matches every element.
func find(n *html.Node, tag string, is ...func(*html.Node) bool) []*html.Node {
	var found []*html.Node
	for d := range n.Descendants() {
		if d.Type != html.ElementNode || tag != "*" && d.Data != tag {
			continue
		}
		ok := true
		for _, f := range is {
			ok = ok && f(d)
		}
		if ok {
			found = append(found, d)
		}
	}
	return found
}

// attributeOf returns an attribute of an element.
func attributeOf(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func with(key, value string) func(*html.Node) bool {
	return func(n *html.Node) bool { return attributeOf(n, key) == value }
}

// textOf returns the text of an element and normalizes spaces.
func textOf(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode && d.Parent.Data != "script" {
			b.WriteString(d.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// TestSecurityHeaders checks that all responses have the security headers. These headers
// allow the browser to load and run only files from this server.
func TestSecurityHeaders(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	for _, url := range []string{"/", "/units/" + string(CheckoutID), "/static/console.css", "/nothing", "/units/0000000000000000"} {
		header := get(t, h, url).Header()
		require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "+
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'", header.Get("Content-Security-Policy"), url)
		require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"), url)
		require.Equal(t, "same-origin", header.Get("Referrer-Policy"), url)
	}
}

// TestPagesKeepToTheirPolicy checks that all pages comply with the content security
// policy. Pages must have no inline scripts, styles or handlers, and no files from other
// hosts.
func TestPagesKeepToTheirPolicy(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	for _, url := range []string{"/", "/units/" + string(CheckoutID), "/policies", "/health", "/nothing"} {
		page := parse(t, get(t, h, url).Body)
		require.Empty(t, find(page, "style"), url)
		for _, n := range find(page, "*") {
			for _, a := range n.Attr {
				require.NotEqual(t, "style", a.Key, "%s: %s", url, n.Data)
				require.False(t, strings.HasPrefix(a.Key, "on"), "%s: %s %s", url, n.Data, a.Key)
				if a.Key == "src" || a.Key == "href" || a.Key == "action" {
					require.True(t, strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "//") || strings.HasPrefix(a.Val, "?") || strings.HasPrefix(a.Val, "#"), "%s: %s", url, a.Val)
				}
			}
			if n.Data == "script" || n.Data == "link" {
				require.Nil(t, n.FirstChild, url)
				file := attributeOf(n, "src") + attributeOf(n, "href")
				w := get(t, h, file)
				require.Equal(t, http.StatusOK, w.Code, file)
				require.Contains(t, w.Header().Get("Cache-Control"), "immutable", file)
			}
		}
		require.Len(t, find(page, "main"), 1)
		require.Len(t, find(page, "h1"), 1)
	}
}

func TestErrors(t *testing.T) {
	m := Demo(testNow)
	h := newTestServer(t, m)
	for url, status := range map[string]int{
		"/nothing":                http.StatusNotFound,
		"/units/0000000000000000": http.StatusNotFound,
		"/units/" + string(CheckoutID) + "?range=forever":           http.StatusBadRequest,
		"/units/" + string(CheckoutID) + "?from=yesterday&to=today": http.StatusBadRequest,
		"/units/" + string(CheckoutID) + "/trends.json?range=-1h":   http.StatusBadRequest,
		"/units/0000000000000000/trends.json":                       http.StatusNotFound,
		"/static/../server.go":                                      http.StatusTemporaryRedirect,
		"/static/nothing.js":                                        http.StatusNotFound,
	} {
		require.Equal(t, status, get(t, h, url).Code, url)
	}
	m.Err = errors.New("disk on fire at /var/lib/secret")
	w := get(t, h, "/")
	require.Equal(t, http.StatusInternalServerError, w.Code)
	require.NotContains(t, w.Body.String(), "secret", "the reason is for the log")
}

func TestStaticFiles(t *testing.T) {
	h := newTestServer(t, &Memory{})
	w := get(t, h, "/static/console.js")
	require.Equal(t, "text/javascript; charset=utf-8", w.Header().Get("Content-Type"))
	require.Equal(t, "no-cache", w.Header().Get("Cache-Control"), "without its version it may be another one tomorrow")
	r := httptest.NewRequest(http.MethodGet, "/static/console.js", nil)
	r.Header.Set("If-None-Match", w.Header().Get("ETag"))
	again := httptest.NewRecorder()
	h.ServeHTTP(again, r)
	require.Equal(t, http.StatusNotModified, again.Code)
}

var _ store.Reader = (*Memory)(nil)
