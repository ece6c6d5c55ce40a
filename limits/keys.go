package limits

import (
	"fmt"
	"strings"
)

// keyPrefix returns the prefix of all keys of a scope. The prefix contains a hash tag, so all keys are on one node of a Cluster.
func keyPrefix(scopeName string) string { return "limits:{" + scopeName + "}:" }

// scopeKeys returns the keys of a scope that lua/keys.lua describes as KEYS[1] to KEYS[3]. The slice has capacity for extraCapacity more keys.
func scopeKeys(scopeName string, extraCapacity int) []any {
	p := keyPrefix(scopeName)
	return append(make([]any, 0, 3+extraCapacity), p+"open", p+"pending", p+"done")
}

// refusalKeys returns the keys of a scope that lua/note.lua describes as KEYS[1] to KEYS[3].
func refusalKeys(scopeName string) []any {
	p := keyPrefix(scopeName)
	return []any{p + "top0", p + "top1", p + "hour"}
}

// ruleKeys holds the Redis keys of a rule in one scope.
type ruleKeys struct {
	scope         string
	ruleKey       string // key of the rule
	ruleArg       any    // ruleKey as an argument of a command
	subjectPrefix string // prefix of the keys of the rule's subjects; the digest of a subject follows it
}

// keysInScope returns the keys of a rule in a scope. It caches the keys of the latest scope, because most rules are used in only one scope.
func (r *Rule) keysInScope(scopeName string) *ruleKeys {
	if n := r.cachedKeys.Load(); n != nil && n.scope == scopeName {
		return n
	}
	p := keyPrefix(scopeName)
	n := &ruleKeys{scope: scopeName, ruleKey: p + "r:" + r.id, subjectPrefix: p + "s:" + r.id + ":"}
	n.ruleArg = n.ruleKey
	r.cachedKeys.Store(n)
	return n
}

func (n *ruleKeys) subjectKey(subject Subject) string { return n.subjectPrefix + subject.digest }

// checkScope returns ErrInvalid if the name would break the hash tag in the keys of the scope.
func checkScope(scopeName string) error {
	if scopeName == "" || strings.IndexByte(scopeName, '{') >= 0 || strings.IndexByte(scopeName, '}') >= 0 {
		return fmt.Errorf("%w: scope %q is empty or contains a brace", ErrInvalid, scopeName)
	}
	return nil
}
