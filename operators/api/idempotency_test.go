package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/store"
)

// postWithKey sends a POST request with this Idempotency-Key.
func (b *testAPI) postWithKey(path, token, idempotencyKey, body string) rig.Response {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.URL+path, strings.NewReader(body))
	b.Must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", idempotencyKey)
	return b.DoRequest(request)
}

func TestAPostWithAKeyIsDoneOnce(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		first := b.postWithKey("/v1/batches", adminToken, "k", newBatchBody).Expect(201)
		again := b.postWithKey("/v1/batches", adminToken, "k", newBatchBody).Expect(201)
		if string(first.Body) != string(again.Body) || first.Header.Get("Idempotency-Replayed") != "" || again.Header.Get("Idempotency-Replayed") != "true" {
			b.Errorf("%s and %s, %v", first.Body, again.Body, again.Header)
		}
		b.postWithKey("/v1/batches", adminToken, "k", newBatchBody+" ").ExpectProblem(422, "idempotency_key_reused")
		b.postWithKey("/v1/batches?dry_run=false", adminToken, "k", newBatchBody).ExpectProblem(422, "idempotency_key_reused")
		b.postWithKey("/v1/devices", adminToken, "k", `{"id":"a"}`).ExpectProblem(422, "idempotency_key_reused")
		if other := b.postWithKey("/v1/batches", b.createToken("operator"), "k", newBatchBody).Expect(201); string(other.Body) == string(first.Body) {
			b.Errorf("another token's key: %s", other.Body)
		}
		for _, key := range []string{strings.Repeat("k", 256), "a b", "\xff"} {
			b.postWithKey("/v1/batches", adminToken, key, newBatchBody).ExpectProblem(422, "invalid_field", "Idempotency-Key")
		}
		if tasks := b.readPages("/v1/tasks", "tasks", "id"); len(tasks) != 4 {
			b.Errorf("tasks %v, want 4", tasks)
		}
	})
}

func TestASecretIsNotReplayed(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		first := b.postWithKey("/v1/devices", adminToken, "k", `{"id":"a"}`).Expect(201).Object()
		again := b.postWithKey("/v1/devices", adminToken, "k", `{"id":"a"}`).Expect(201).Object()
		if first["token"] == "" || again["token"] != "" || again["id"] != "a" || again["created_at"] != first["created_at"] {
			b.Errorf("%v, then %v", first, again)
		}
	})
}

// slowStore is a ledger that calls duringCreate while a batch is being created.
type slowStore struct {
	*interceptedStore
	duringCreate func()
}

func (s *slowStore) CreateBatch(ctx context.Context, actor string, b store.Batch, q store.NewBatchTasks) (store.Batch, error) {
	tasks := q.Tasks
	q.Tasks = func(yield func(store.NewTask, error) bool) {
		s.duringCreate()
		tasks(yield)
	}
	return s.interceptedStore.CreateBatch(ctx, actor, b, q)
}

func TestASecondPostWithAKeyIsToldToWait(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	slow := &slowStore{interceptedStore: b.store}
	url := rig.Start(t, b.Stores, func(o *rig.Options) { o.API.Store = slow }).URL
	plain := b.URL
	slow.duringCreate = func() {
		b.URL = plain
		b.postWithKey("/v1/batches", adminToken, "k", newBatchBody).ExpectProblem(409, "idempotency_key_in_use")
	}
	b.URL = url
	b.postWithKey("/v1/batches", adminToken, "k", newBatchBody).Expect(201)
}
