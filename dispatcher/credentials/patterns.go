package credentials

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/fleetslots/dispatcher/store"
)

// RoleCaller is the role of programs that lease slots of pools and take from limit sets. The patterns of a program's token say which pools
// and limit sets it may use.
const RoleCaller = "caller"

const (
	maxPatterns      = 32 // maximum number of patterns for pools, and of patterns for limit sets
	maxPatternLength = 64 // maximum length of a pattern in characters, which is the maximum length of a name
)

// CheckToken checks the name and the patterns of an operator token. The error names the invalid field.
func CheckToken(token store.Token) error {
	if strings.ContainsFunc(token.Name, isInvisible) || token.Name != strings.Join(strings.Fields(token.Name), " ") {
		return fmt.Errorf("name: only visible characters and single spaces between them, not %+q", token.Name)
	}
	if token.Role != RoleCaller && len(token.Pools)+len(token.LimitSets) > 0 {
		return fmt.Errorf("pools, limit_sets: only allowed with the role %s", RoleCaller)
	}
	if token.Role == RoleCaller && len(token.Pools)+len(token.LimitSets) == 0 {
		return fmt.Errorf("pools, limit_sets: the role %s requires at least one pattern", RoleCaller)
	}
	if err := checkTokenPatterns("pools", token.Pools); err != nil {
		return err
	}
	return checkTokenPatterns("limit_sets", token.LimitSets)
}

// isInvisible reports whether char cannot be seen. Names with such characters are refused, because they look like other names in the audit
// log.
func isInvisible(char rune) bool {
	const brailleBlank = '\u2800'
	return !unicode.IsPrint(char) || char == brailleBlank || unicode.In(char, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

func checkTokenPatterns(fieldName string, patterns []string) error {
	if len(patterns) > maxPatterns {
		return fmt.Errorf("%s: at most %d patterns", fieldName, maxPatterns)
	}
	validPattern := regexp.MustCompile(`^[A-Za-z0-9*][A-Za-z0-9._:*-]*$`)
	for i, p := range patterns {
		if len(p) > maxPatternLength || !validPattern.MatchString(p) {
			return fmt.Errorf("%s[%d]: 1-%d of A-Z a-z 0-9 . _ : - and * (for any text), starting with a letter, a digit or *", fieldName, i, maxPatternLength)
		}
	}
	return nil
}
