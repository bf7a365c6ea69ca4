// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/hostid"
	"github.com/hotprofile/hotprofile/internal/urls"
)

// maxAnswer is the maximum number of bytes that are read from a response of cpu_trigger's
// manual server.
const maxAnswer = 16 << 10

// canOpen returns a function that reports whether the manual server can open the gate of a
// unit. A manual server on a loopback address knows only the units of this host.
func (c *Console) canOpen() func(store.Unit) bool {
	u, err := url.Parse(c.cfg.Manual.Get().Endpoint)
	if err != nil || !isLoopback(u.Hostname()) {
		return func(store.Unit) bool { return true }
	}
	names := hostid.Names("/")
	return func(unit store.Unit) bool { return slices.Contains(names, unit.Host) }
}

// openGate asks cpu_trigger to open the gate of a unit.
func (c *Console) openGate(ctx context.Context, unit store.Unit) error {
	endpoint := strings.TrimSuffix(c.cfg.Manual.Get().Endpoint, "/") + "/v1/trigger"
	form := url.Values{"unit": {unit.Name}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return errors.New("manual: no request can be made of its endpoint")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := c.manual.Do(req)
	if err != nil {
		return fmt.Errorf("the server manual of cpu_trigger does not answer: %w", urls.Cause(err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	var answer struct {
		Error string `json:"error"`
	}
	invalid := json.Unmarshal(body, &answer)
	switch {
	case err != nil:
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("cpu_trigger did not open the gate: %s", cmp.Or(answer.Error, "status "+resp.Status))
	default:
		err = invalid
	}
	if err != nil {
		return fmt.Errorf("read the answer of manual of cpu_trigger: %w", err)
	}
	return nil
}
