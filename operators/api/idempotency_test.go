package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// postWithKey sends a POST request with this Idempotency-Key.
func (b *testAPI) postWithKey(path, token, idempotencyKey, body string) apiResponse {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.url+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", idempotencyKey)
	return b.doRequest(request)
}

func TestAPostWithAKeyIsDoneOnce(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.putPool("p", `{"capacity":60}`)
		first := b.postWithKey("/v1/batches", adminToken, "k", newBatchBody).expectStatus(201)
		again := b.postWithKey("/v1/batches", adminToken, "k", newBatchBody).expectStatus(201)
		if string(first.body) != string(again.body) || first.header.Get("Idempotency-Replayed") != "" || again.header.Get("Idempotency-Replayed") != "true" {
			b.Errorf("%s and %s, %v", first.body, again.body, again.header)
		}
		b.postWithKey("/v1/batches", adminToken, "k", newBatchBody+" ").expectProblem(422, "idempotency_key_reused")
		b.postWithKey("/v1/batches?dry_run=false", adminToken, "k", newBatchBody).expectProblem(422, "idempotency_key_reused")
		b.postWithKey("/v1/devices", adminToken, "k", `{"id":"a"}`).expectProblem(422, "idempotency_key_reused")
		if other := b.postWithKey("/v1/batches", b.createToken("operator"), "k", newBatchBody).expectStatus(201); string(other.body) == string(first.body) {
			b.Errorf("another token's key: %s", other.body)
		}
		for _, key := range []string{strings.Repeat("k", 256), "a b", "\xff"} {
			b.postWithKey("/v1/batches", adminToken, key, newBatchBody).expectProblem(422, "invalid_field").expectMentions(b.T, "Idempotency-Key")
		}
		if tasks := b.readPages("/v1/tasks", "tasks", "id"); len(tasks) != 4 {
			b.Errorf("tasks %v, want 4", tasks)
		}
	})
}

func TestASecretIsNotReplayed(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		first := b.postWithKey("/v1/devices", adminToken, "k", `{"id":"a"}`).expectStatus(201).decodeObject()
		again := b.postWithKey("/v1/devices", adminToken, "k", `{"id":"a"}`).expectStatus(201).decodeObject()
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
	b.putPool("p", `{"capacity":60}`)
	slow := &slowStore{interceptedStore: b.store}
	url := b.startServer(b.newAPI(func(s *testOptions) {
		s.api.Store = slow
		s.api.Metrics, s.dispatcher.Registerer = nil, nil
	}).Handler())
	plain := b.url
	slow.duringCreate = func() {
		b.url = plain
		b.postWithKey("/v1/batches", adminToken, "k", newBatchBody).expectProblem(409, "idempotency_key_in_use")
	}
	b.url = url
	b.postWithKey("/v1/batches", adminToken, "k", newBatchBody).expectStatus(201)
}
