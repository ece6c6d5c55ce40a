package credentials

import (
	"fmt"
	"regexp"

	"github.com/fleetslots/dispatcher/store"
)

// RoleCaller is the role of programs that are neither devices nor operators. They lease slots of the pools,
// and take from the limit sets, that match the patterns of their token.
const RoleCaller = "caller"

const (
	maxPatterns      = 32 // maximum number of patterns for pools, and for limit sets
	maxPatternLength = 64 // maximum length of a pattern in characters, which is the maximum length of a name
)

// CheckPatterns returns an error that names the field if one of the name patterns of an operator token is invalid.
func CheckPatterns(token store.Token) error {
	if token.Role != RoleCaller && len(token.Pools)+len(token.LimitSets) > 0 {
		return fmt.Errorf("pools, limit_sets: only allowed with the role %s", RoleCaller)
	}
	if token.Role == RoleCaller && len(token.Pools)+len(token.LimitSets) == 0 {
		return fmt.Errorf("pools, limit_sets: the role %s requires at least one pattern", RoleCaller)
	}
	if err := checkPatterns("pools", token.Pools); err != nil {
		return err
	}
	return checkPatterns("limit_sets", token.LimitSets)
}

// checkPatterns returns an error that names field if one of patterns is invalid.
func checkPatterns(field string, patterns []string) error {
	if len(patterns) > maxPatterns {
		return fmt.Errorf("%s: at most %d patterns", field, maxPatterns)
	}
	validPattern := regexp.MustCompile(`^[A-Za-z0-9*][A-Za-z0-9._:*-]*$`)
	for i, p := range patterns {
		if len(p) > maxPatternLength || !validPattern.MatchString(p) {
			return fmt.Errorf("%s[%d]: 1-%d of A-Z a-z 0-9 . _ : - and * (for any text), starting with a letter, a digit or *", field, i, maxPatternLength)
		}
	}
	return nil
}
