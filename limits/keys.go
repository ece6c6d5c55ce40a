package limits

import (
	"fmt"
	"strings"
)

// prefix of the keys of a scope: one hash tag, so one node of a Cluster.
func prefix(scope string) string { return "limits:{" + scope + "}:" }

// keysOf are those of a scope, in the order of keys.lua, with room for more.
func keysOf(scope string, more int) []any {
	p := prefix(scope)
	return append(make([]any, 0, 3+more), p+"open", p+"pending", p+"done")
}

// keysOfTop are those of note.lua.
func keysOfTop(scope string) []any {
	p := prefix(scope)
	return []any{p + "top0", p + "top1", p + "hour"}
}

// names are the keys of a rule in a scope, made once.
type names struct {
	scope    string
	shared   []any  // keys of the scope
	key      string // of the rule
	rule     any    // the same
	subjects string // followed by a digest
}

// in are the keys of a rule in a scope. Mostly it is asked in one.
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

// sharedKeys are those of keysOf, made once.
func sharedKeys(scope string, c Check) []any {
	if len(c.Items) == 0 {
		return keysOf(scope, 0)
	}
	return c.Items[0].Rule.in(scope).shared
}

// subject is the key of one.
func (n *names) subject(s Subject) string { return n.subjects + s.digest }

// checkScope keeps a name from breaking out of the hash tag.
func checkScope(scope string) error {
	if scope == "" || strings.IndexByte(scope, '{') >= 0 || strings.IndexByte(scope, '}') >= 0 {
		return fmt.Errorf("%w: scope %q", ErrInvalid, scope)
	}
	return nil
}
