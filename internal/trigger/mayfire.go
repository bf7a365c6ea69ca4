// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import "time"

// MayFire says whether a policy that lets profiles out may open the unit's gate
// before a time, or has: if not, there is no use in keeping its profiles until
// then. Openings by hand and baselines are not foreseen.
func (u *Unit) MayFire(before time.Time) bool {
	if u.gone {
		return false
	}
	for i := range u.gates {
		g := &u.gates[i]
		if g.off || u.engine.policies[i].dryRun {
			continue
		}
		if g.state == Profiling || g.notBefore.Before(before) && u.engine.policies[i].name != Manual {
			return true
		}
	}
	return false
}
