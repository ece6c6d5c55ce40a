package simulator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Errors of the operator API that a caller decides by.
var (
	ErrNotFound    = errors.New("not found")
	ErrConflict    = errors.New("conflict")    // it is there already
	ErrUnavailable = errors.New("unavailable") // no answer, or one that says to come again
)

// Operator is a client of the operator API, for the few calls a simulation needs.
type Operator struct {
	replicas *replicas
	token    string
	client   *http.Client
}

// NewOperator makes a client for the dispatcher at url; several replicas have
// commas between. After a call that failed, the next goes to another. The
// token is an operator token of role admin.
func NewOperator(url, token string) *Operator {
	return &Operator{replicas: newReplicas(url, 0), token: token, client: &http.Client{Timeout: time.Minute}}
}

// Pool is a pool's settings, as far as a simulation cares.
type Pool struct {
	Capacity int   `json:"capacity"`
	LeaseMS  int64 `json:"lease_ms,omitempty"` // absent = the server's default
	Paused   bool  `json:"paused,omitempty"`
}

// Slots is one consistent reading of a pool's slots.
type Slots struct {
	Pool     string `json:"pool"`
	Capacity int    `json:"capacity"`
	Held     int    `json:"held"`
	Waiting  int    `json:"waiting"`
}

// Batch is a request to queue tasks.
type Batch struct {
	Name           string    `json:"name"`
	Pool           string    `json:"pool"`
	Kind           string    `json:"kind"`
	MaxAttempts    int       `json:"max_attempts,omitempty"`
	OnLost         string    `json:"on_lost,omitempty"`
	RetryOn        []string  `json:"retry_on,omitempty"`
	RetryBackoffMS int64     `json:"retry_backoff_ms,omitempty"`
	NotBefore      string    `json:"not_before,omitempty"`
	Tasks          []NewTask `json:"tasks"`
}

// NewTask is one task of a Batch.
type NewTask struct {
	Device  string          `json:"device"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// BatchState is where a batch stands. The counts add up to Total.
type BatchState struct {
	ID     int64            `json:"id"`
	State  string           `json:"state"`
	Total  int64            `json:"total"`
	Counts map[string]int64 `json:"counts"`
}

// Terminal is how many tasks have ended.
func (b BatchState) Terminal() int64 {
	return b.Counts["succeeded"] + b.Counts["failed"] + b.Counts["timed_out"] + b.Counts["cancelled"] + b.Counts["expired"]
}

// Task is a task as listed. Output keeps the bytes of the response.
type Task struct {
	ID     int64           `json:"id"`
	Device string          `json:"device"`
	State  string          `json:"state"`
	Output json.RawMessage `json:"output"`
	Error  string          `json:"error"`
}

// PutPool creates or replaces a pool.
func (o *Operator) PutPool(ctx context.Context, name string, p Pool) error {
	return o.call(ctx, http.MethodPut, "/v1/pools/"+url.PathEscape(name), p, nil)
}

// Pool returns a pool's settings, or ErrNotFound.
func (o *Operator) Pool(ctx context.Context, name string) (Pool, error) {
	var p Pool
	err := o.call(ctx, http.MethodGet, "/v1/pools/"+url.PathEscape(name), nil, &p)
	return p, err
}

// CreateDevice registers a device and returns its token, or ErrConflict.
func (o *Operator) CreateDevice(ctx context.Context, id string) (token string, err error) {
	return o.newToken(ctx, "/v1/devices", map[string]any{"id": id})
}

// RotateToken gives a device a new token; older ones end at once.
func (o *Operator) RotateToken(ctx context.Context, id string) (token string, err error) {
	return o.newToken(ctx, "/v1/devices/"+url.PathEscape(id)+"/token", map[string]any{"overlap_ms": 0})
}

func (o *Operator) newToken(ctx context.Context, path string, in any) (string, error) {
	var out struct {
		Token string `json:"token"`
	}
	if err := o.call(ctx, http.MethodPost, path, in, &out); err != nil {
		return "", err
	}
	if out.Token == "" {
		return "", fmt.Errorf("POST %s: no token in the answer", path)
	}
	return out.Token, nil
}

// Slots returns a reading of the pool's slots, or ErrNotFound.
func (o *Operator) Slots(ctx context.Context, pool string) (Slots, error) {
	var s Slots
	err := o.call(ctx, http.MethodGet, "/v1/pools/"+url.PathEscape(pool)+"/slots", nil, &s)
	return s, err
}

// CreateBatch queues a batch and returns its id.
func (o *Operator) CreateBatch(ctx context.Context, b Batch) (int64, error) {
	var created struct {
		ID    int64 `json:"id"`
		Tasks int   `json:"tasks"`
	}
	if err := o.call(ctx, http.MethodPost, "/v1/batches", b, &created); err != nil {
		return 0, err
	}
	if created.Tasks != len(b.Tasks) {
		return 0, fmt.Errorf("batch %d: %d tasks were created, want %d", created.ID, created.Tasks, len(b.Tasks))
	}
	return created.ID, nil
}

// Batch returns where a batch stands, or ErrNotFound.
func (o *Operator) Batch(ctx context.Context, id int64) (BatchState, error) {
	var b BatchState
	err := o.call(ctx, http.MethodGet, "/v1/batches/"+strconv.FormatInt(id, 10), nil, &b)
	return b, err
}

// Tasks calls each for every task of a batch, page by page.
func (o *Operator) Tasks(ctx context.Context, batch int64, each func(Task)) error {
	query := url.Values{"batch": {strconv.FormatInt(batch, 10)}, "page_size": {"1000"}}
	for {
		var page struct {
			Tasks []Task `json:"tasks"`
			Next  string `json:"next_page_token"`
		}
		if err := o.call(ctx, http.MethodGet, "/v1/tasks?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		for _, t := range page.Tasks {
			each(t)
		}
		if page.Next == "" {
			return nil
		}
		query.Set("page_token", page.Next)
	}
}

// call asks one replica. Only a reading that got no answer is tried again, at
// each of the others.
func (o *Operator) call(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	var err error
	for range o.replicas.urls {
		base, mark := o.replicas.current()
		if err = o.ask(ctx, method, base+path, body, out); !errors.Is(err, ErrUnavailable) {
			break
		}
		o.replicas.leave(mark)
		if method != http.MethodGet || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

func (o *Operator) ask(ctx context.Context, method, url string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+o.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := o.client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer func() { _ = resp.Body.Close() }()
	return decodeResponse(resp, out)
}

func decodeResponse(resp *http.Response, out any) error {
	if resp.StatusCode/100 == 2 {
		if out == nil {
			return nil
		}
		return json.NewDecoder(resp.Body).Decode(out)
	}
	var problem struct {
		Code   string `json:"code"`
		Detail string `json:"detail"`
	}
	_ = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&problem)
	for status, known := range map[int]error{
		http.StatusNotFound: ErrNotFound, http.StatusConflict: ErrConflict, http.StatusServiceUnavailable: ErrUnavailable,
	} {
		if resp.StatusCode == status {
			return fmt.Errorf("%w: %s %s", known, problem.Code, problem.Detail)
		}
	}
	return fmt.Errorf("status %d: %s %s", resp.StatusCode, problem.Code, problem.Detail)
}
