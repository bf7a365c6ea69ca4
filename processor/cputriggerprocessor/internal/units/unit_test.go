// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/identify"
)

// TestALongServiceNameIsCutBetweenCharacters checks the shortened service name in
// logs and events.
func TestALongServiceNameIsCutBetweenCharacters(t *testing.T) {
	u := Unit{named: true}
	u.setService(identify.Claim{Service: "a" + strings.Repeat("é", maxText)})
	require.Equal(t, "a"+strings.Repeat("é", maxText/2-1), u.serviceName())
}
