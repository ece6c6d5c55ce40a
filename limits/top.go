package limits

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Limited is a subject that was refused.
type Limited struct {
	Policy  string
	Subject string // its label
	Times   int64  // in this hour and the one before; too high at most, of subjects that are rare
}

// Top returns up to limit subjects of a scope that were refused most, in this hour
// and the one before it. Refusals of other processes are in it once they told
// (Tell).
func (l *Limiter) Top(ctx context.Context, scope string, limit int) ([]Limited, error) {
	if err := checkScope(scope); err != nil {
		return nil, err
	}
	if err := l.tellRefused(ctx, scope); err != nil {
		return nil, err
	}
	cmd, err := l.run(ctx, l.scripts.top, scope, keysOfTop(scope), []any{labels})
	if err != nil {
		return nil, err
	}
	words, err := cmd.StringSlice()
	if err != nil {
		return nil, unavailable(scope, err)
	}
	times := make(map[string]int64)
	for pair := range slices.Chunk(words, 2) {
		n, err := strconv.ParseFloat(pair[1], 64)
		if err != nil {
			return nil, fmt.Errorf("limits of %s: %w: number %q", scope, ErrUnavailable, pair[1])
		}
		times[pair[0]] += int64(n)
	}
	var out []Limited
	for label, n := range times {
		policy, subject, _ := strings.Cut(label, "|")
		out = append(out, Limited{Policy: policy, Subject: subject, Times: n})
	}
	slices.SortFunc(out, func(a, b Limited) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Subject, b.Subject))
	})
	return out[:min(limit, len(out))], nil
}
