// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"crypto/subtle"
	"errors"
	"net/http"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

// These are the reasons why the console refuses a request to change something.
const (
	// RefusedOrigin means that a browser sent the request on behalf of another website.
	RefusedOrigin = "origin"
	// RefusedToken means that the request does not contain the token of a page.
	RefusedToken = "token"
)

// maxForm is the maximum size of a form without a policy text, in bytes.
const maxForm = 4 << 10

// sameOrigin rejects a request for a change if the request comes from another website. A
// browser can send such requests even to a server on localhost.
func (s *Server) sameOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(s.answer(func(http.ResponseWriter, *http.Request) error {
		s.CountRefused(RefusedOrigin)
		return failure{http.StatusForbidden, "This request came from another website."}
	}))
	return protection.Handler(next)
}

// form returns the handler of a form that changes something. most is the maximum size of
// the form, in bytes. The form must contain the token of the pages, because other websites
// cannot read this token.
func (s *Server) form(most int64, h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if s.Token == "" {
			return failure{http.StatusForbidden, "Nothing can be changed here: neither manual nor edit is configured."}
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		var large *http.MaxBytesError
		switch err := r.ParseForm(); {
		case errors.As(err, &large):
			return failure{http.StatusRequestEntityTooLarge, "The form is too large."}
		case err != nil:
			return failure{http.StatusBadRequest, "The form cannot be read."}
		}
		if subtle.ConstantTimeCompare([]byte(r.PostForm.Get("token")), []byte(s.Token)) != 1 {
			s.CountRefused(RefusedToken)
			return failure{http.StatusForbidden, "The form is not of a page of this run of the collector. Go back, load the page again, and repeat what you did."}
		}
		return h(w, r)
	}
}

// profileNow opens the gate of a unit manually.
func (s *Server) profileNow(w http.ResponseWriter, r *http.Request) error {
	u, err := s.Store.Unit(store.UnitID(r.PathValue("id")))
	if err != nil {
		return err
	}
	if s.Profile == nil || s.CanProfile == nil || !s.CanProfile(u.Unit) {
		return failure{http.StatusForbidden, "The gate of this unit cannot be opened from here: set manual of this console to the server of the cpu_trigger that watches it."}
	}
	if err := s.Profile(r.Context(), u.Unit); err != nil {
		return failure{http.StatusBadGateway, "The gate was not opened: " + cutText(500, err.Error())}
	}
	http.Redirect(w, r, "/units/"+string(u.ID)+"?range=1h", http.StatusSeeOther)
	return nil
}
