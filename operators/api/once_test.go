package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// keyed posts with an Idempotency-Key.
func (b *bench) keyed(path, token, key, body string) answer {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.url+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	return b.do(request)
}

func TestAPostWithAKeyIsDoneOnce(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("p", `{"capacity":60}`)
		first := b.keyed("/v1/batches", adminToken, "k", newFields).must(201)
		again := b.keyed("/v1/batches", adminToken, "k", newFields).must(201)
		if string(first.body) != string(again.body) || first.header.Get("Idempotency-Replayed") != "" || again.header.Get("Idempotency-Replayed") != "true" {
			b.Errorf("%s and %s, %v", first.body, again.body, again.header)
		}
		b.keyed("/v1/batches", adminToken, "k", newFields+" ").problem(422, "idempotency_key_reused")
		b.keyed("/v1/batches?dry_run=false", adminToken, "k", newFields).problem(422, "idempotency_key_reused")
		b.keyed("/v1/devices", adminToken, "k", `{"id":"a"}`).problem(422, "idempotency_key_reused")
		if other := b.keyed("/v1/batches", b.token("operator"), "k", newFields).must(201); string(other.body) == string(first.body) {
			b.Errorf("another token's key: %s", other.body)
		}
		for _, key := range []string{strings.Repeat("k", 256), "a b", "\xff"} {
			b.keyed("/v1/batches", adminToken, key, newFields).problem(422, "invalid_field").names(b.T, "Idempotency-Key")
		}
		if tasks := b.pages("/v1/tasks", "tasks", "id"); len(tasks) != 4 {
			b.Errorf("tasks %v, want 4", tasks)
		}
	})
}

func TestASecretIsNotReplayed(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		first := b.keyed("/v1/devices", adminToken, "k", `{"id":"a"}`).must(201).fields()
		again := b.keyed("/v1/devices", adminToken, "k", `{"id":"a"}`).must(201).fields()
		if first["token"] == "" || again["token"] != "" || again["id"] != "a" || again["created_at"] != first["created_at"] {
			b.Errorf("%v, then %v", first, again)
		}
	})
}

// slowStore calls meanwhile while a batch is being created.
type slowStore struct {
	*ledger
	meanwhile func()
}

func (s *slowStore) CreateBatch(ctx context.Context, actor string, b store.Batch, q store.Queue) (store.Batch, error) {
	tasks := q.Tasks
	q.Tasks = func(yield func(store.NewTask, error) bool) {
		s.meanwhile()
		tasks(yield)
	}
	return s.ledger.CreateBatch(ctx, actor, b, q)
}

func TestASecondPostWithAKeyIsToldToWait(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":60}`)
	slow := &slowStore{ledger: b.store}
	url := b.serve(b.newAPI(func(s *setup) {
		s.api.Store = slow
		s.api.Metrics, s.dispatcher.Registerer = nil, nil
	}).Handler())
	plain := b.url
	slow.meanwhile = func() {
		b.url = plain
		b.keyed("/v1/batches", adminToken, "k", newFields).problem(409, "idempotency_key_in_use")
	}
	b.url = url
	b.keyed("/v1/batches", adminToken, "k", newFields).must(201)
}
