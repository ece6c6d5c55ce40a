package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	whySampleSize = 30               // tasks that are evaluated for the sentence of a pool
	whysReadEvery = 10 * time.Second // interval at which the sentences are read again
)

// waitSentence is why the tasks of a pool wait, in one sentence.
type waitSentence struct {
	Sentence string
	Stuck    string // the reason in a few words, if at least half of the tasks wait for it, and it is a limit or does not pass by itself; otherwise empty
}

// poolListRedisData holds the parts of the list of pools that need Redis.
type poolListRedisData struct {
	checks []dependency
	whys   map[string]waitSentence // by pool; only of the pools with the worst trouble
}

// readListRedisData reads the parts of the list of pools that need Redis.
func (p *poolPages) readListRedisData(r *http.Request) (data poolListRedisData, err error) {
	data.checks = p.system.checkDependencies(r.Context())
	data.whys, err = p.whysCache.getOrRead(r.Context(), "", p.now(), func(ctx context.Context) (map[string]waitSentence, error) {
		return p.readWaitSentences(r.WithContext(ctx))
	})
	return data, err
}

// readWaitSentences returns the sentences of the pools with the worst trouble, at most poolsShown, by name. A pool whose reasons cannot be read
// has no sentence.
func (p *poolPages) readWaitSentences(r *http.Request) (sentenceByPool map[string]waitSentence, err error) {
	var list operators.PoolList
	if err := p.api.get(r, operators.Path("pools"), url.Values{"sort": {"trouble"}, "page_size": {strconv.Itoa(poolsShown)}}, &list); err != nil {
		return nil, err
	}
	whys := map[string]waitSentence{}
	for _, pool := range list.Pools {
		var waiting operators.Waiting
		if pool.Pending == 0 && len(pool.Trouble) == 0 || r.Context().Err() != nil {
			continue
		}
		if p.api.get(r, operators.Path("pools", pool.Name, "waiting"), url.Values{"sample": {strconv.Itoa(whySampleSize)}}, &waiting) == nil {
			whys[pool.Name] = newWaitSentence(waiting)
		}
	}
	return whys, nil
}

// newWaitSentence returns the sentence about the most important reason in waiting.
func newWaitSentence(waiting operators.Waiting) (why waitSentence) {
	if len(waiting.Parts) > 0 {
		first := waiting.Parts[0]
		why.Sentence = fmt.Sprintf("%s of %s: %s", approximateCountText(first.Count, waiting.Sampled), countText(waiting.Total, "task", "tasks"), strings.TrimPrefix(first.Detail, "for example: "))
		if code := decision.Code(first.Code); 2*first.Count >= waiting.Total && (code == decision.CodeLimited || !decision.PassesByItself(code)) {
			why.Stuck = first.Label
		}
	}
	if failing := waiting.RecentAttempts.Text(); failing != "" {
		why.Sentence = failing
	}
	return why
}
