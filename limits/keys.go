package limits

import (
	"fmt"
	"strings"
)

// prefix returns the prefix of all keys of a scope. It is one hash tag, so all keys are on one node of a Cluster.
func prefix(scope string) string { return "limits:{" + scope + "}:" }

// keysOf returns the keys of a scope in the order of lua/keys.lua, with capacity for more keys.
func keysOf(scope string, more int) []any {
	p := prefix(scope)
	return append(make([]any, 0, 3+more), p+"open", p+"pending", p+"done")
}

// keysOfTop returns the keys of lua/note.lua.
func keysOfTop(scope string) []any {
	p := prefix(scope)
	return []any{p + "top0", p + "top1", p + "hour"}
}

// names caches the keys of a rule in one scope.
type names struct {
	scope    string
	shared   []any  // keys of the scope (keysOf)
	key      string // key of the rule
	rule     any    // the same key, as an argument of a command
	subjects string // prefix of the keys of subjects; the digest of a subject follows
}

// in returns the keys of a rule in a scope. It caches them for the latest scope, because most rules
// are used in one scope.
func (r *Rule) in(scope string) *names {
	if n := r.names.Load(); n != nil && n.scope == scope {
		return n
	}
	p := prefix(scope)
	n := &names{scope: scope, shared: keysOf(scope, 0), key: p + "r:" + r.id, subjects: p + "s:" + r.id + ":"}
	n.rule = n.key
	r.names.Store(n)
	return n
}

// sharedKeys returns keysOf(scope), from the cache of the first rule of c if c has items.
func sharedKeys(scope string, c Check) []any {
	if len(c.Items) == 0 {
		return keysOf(scope, 0)
	}
	return c.Items[0].Rule.in(scope).shared
}

// subject returns the key of subject s.
func (n *names) subject(s Subject) string { return n.subjects + s.digest }

// checkScope refuses names that would break the hash tag.
func checkScope(scope string) error {
	if scope == "" || strings.IndexByte(scope, '{') >= 0 || strings.IndexByte(scope, '}') >= 0 {
		return fmt.Errorf("%w: scope %q", ErrInvalid, scope)
	}
	return nil
}
