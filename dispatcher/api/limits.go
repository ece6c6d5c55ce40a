package api

import (
	"encoding/json"
	"net/http"

	"github.com/fleetslots/dispatcher/limits"
)

// readLimits checks policies and turns them into what is kept of them.
func readLimits(policies []limits.Policy) (json.RawMessage, error) {
	if len(policies) == 0 {
		return nil, nil
	}
	if err := limits.Validate(policies); err != nil {
		return nil, problem(http.StatusUnprocessableEntity, codeInvalidField, err.Error())
	}
	return json.Marshal(policies)
}

// showLimits shows what was kept.
func showLimits(kept json.RawMessage) []limits.Policy {
	policies, err := limits.Parse(kept)
	if err != nil || policies == nil {
		return []limits.Policy{} // of a later release: not to be shown in part
	}
	return policies
}
