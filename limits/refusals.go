package limits

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
)

// RefusalCounts counts the refused starts of policies and subjects, for display.
type RefusalCounts struct {
	conn      *connection
	note, top script
	counts    unpublished[int64] // key: "policy|label"
}

// RefusedSubject is a subject and the number of its refusals.
type RefusedSubject struct {
	Policy  string
	Subject string // label of the subject (Subject.Label)
	// RefusalCount is the number of published refusals in the current and the previous hour. It may be too high for a
	// rarely refused subject. It is too low only if refusals were not published.
	RefusalCount int64
}

// countRefusals counts the refusals in answers, the answers to checks. It does not count refusals that are due to open reservations. isFull is
// true if maxLabels subjects of the scope have counts that are not published yet. Then the caller must publish them.
func (r *RefusalCounts) countRefusals(scopeName string, checks []Check, answers []Answer) (isFull bool) {
	for i, a := range answers {
		for _, refusal := range a.Refusals {
			if !refusal.Pending {
				item := checks[i].Items[refusal.Item]
				label := item.Rule.Name + "|" + item.Subject.Label
				isFull = r.counts.updateValue(scopeName, label, func(n int64) int64 { return n + 1 }) >= maxLabels || isFull
			}
		}
	}
	return isFull
}

// Publish adds the refusals that this process has counted to the counts in Redis. Call it about every ten seconds. If Publish fails, the
// counts are lost.
func (r *RefusalCounts) Publish(ctx context.Context) error {
	return r.counts.publish(ctx, r.publishScope)
}

func (r *RefusalCounts) publishScope(ctx context.Context, scopeName string) error {
	counts := r.counts.removeScope(scopeName)
	if len(counts) == 0 {
		return nil
	}
	args := []any{maxLabels}
	for label, n := range counts {
		args = append(args, label, n)
	}
	_, err := r.conn.runScriptAtMost(ctx, 1, r.note, scopeName, refusalKeys(scopeName), args) // sent only once, because a second run would count twice
	return err
}

// MostRefused returns at most limit subjects of a scope, those with the most refusals in the current and the previous hour. It includes the
// refusals that other processes have published.
func (r *RefusalCounts) MostRefused(ctx context.Context, scopeName string, limit int) ([]RefusedSubject, error) {
	if err := checkScope(scopeName); err != nil {
		return nil, err
	}
	if err := r.publishScope(ctx, scopeName); err != nil {
		return nil, err
	}
	cmd, err := r.conn.runScript(ctx, r.top, scopeName, refusalKeys(scopeName), []any{maxLabels})
	if err != nil {
		return nil, err
	}
	words, err := cmd.StringSlice()
	if err != nil {
		return nil, wrapUnavailable(scopeName, err)
	}
	refusalCounts := make(map[string]int64)
	for pair := range slices.Chunk(words, 2) {
		n, err := strconv.ParseFloat(pair[1], 64)
		if err != nil {
			return nil, newReplyError(scopeName, words)
		}
		refusalCounts[pair[0]] += int64(n)
	}
	var out []RefusedSubject
	for label, n := range refusalCounts {
		policy, subject, _ := strings.Cut(label, "|")
		out = append(out, RefusedSubject{Policy: policy, Subject: subject, RefusalCount: n})
	}
	slices.SortFunc(out, func(a, b RefusedSubject) int {
		return cmp.Or(cmp.Compare(b.RefusalCount, a.RefusalCount), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Subject, b.Subject))
	})
	return out[:min(limit, len(out))], nil
}
