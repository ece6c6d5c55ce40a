package limits

import (
	"fmt"
	"strings"
)

// keyPrefix returns the prefix of all keys of a scope. It is a hash tag, so all keys of the scope are on one
// node of a Cluster.
func keyPrefix(scope string) string { return "limits:{" + scope + "}:" }

// scopeKeys returns the keys of a scope in the order of lua/keys.lua. The returned slice has capacity for
// extra more keys.
func scopeKeys(scope string, extra int) []any {
	p := keyPrefix(scope)
	return append(make([]any, 0, 3+extra), p+"open", p+"pending", p+"done")
}

// refusalKeys returns the keys of lua/note.lua.
func refusalKeys(scope string) []any {
	p := keyPrefix(scope)
	return []any{p + "top0", p + "top1", p + "hour"}
}

// ruleKeys holds the Redis keys of a rule in one scope.
type ruleKeys struct {
	scope         string
	scopeKeys     []any  // keys of the scope (scopeKeys)
	ruleKey       string // key of the rule
	ruleArg       any    // the same key, as an argument of a command
	subjectPrefix string // prefix of the keys of the rule's subjects; the digest of a subject follows it
}

// keysIn returns the keys of a rule in a scope. It caches them for the latest scope, because most rules
// are used in one scope.
func (r *Rule) keysIn(scope string) *ruleKeys {
	if n := r.cachedKeys.Load(); n != nil && n.scope == scope {
		return n
	}
	p := keyPrefix(scope)
	n := &ruleKeys{scope: scope, scopeKeys: scopeKeys(scope, 0), ruleKey: p + "r:" + r.id, subjectPrefix: p + "s:" + r.id + ":"}
	n.ruleArg = n.ruleKey
	r.cachedKeys.Store(n)
	return n
}

// sharedKeys returns scopeKeys(scope). If check c has items, it takes the keys from the cache of the first
// rule of c.
func sharedKeys(scope string, c Check) []any {
	if len(c.Items) == 0 {
		return scopeKeys(scope, 0)
	}
	return c.Items[0].Rule.keysIn(scope).scopeKeys
}

// subjectKey returns the key under which Redis stores what the rule has counted for subject s.
func (n *ruleKeys) subjectKey(s Subject) string { return n.subjectPrefix + s.digest }

// checkScope returns ErrInvalid for a name of a scope that would break the hash tag in the keys.
func checkScope(scope string) error {
	if scope == "" || strings.IndexByte(scope, '{') >= 0 || strings.IndexByte(scope, '}') >= 0 {
		return fmt.Errorf("%w: scope %q", ErrInvalid, scope)
	}
	return nil
}
