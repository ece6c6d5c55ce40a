package baseline

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lease is the length of a lease in replies. Leases never end here: only a result ends a grant.
const lease = time.Hour

// Server answers the reports of devices, and the operator calls that a simulation makes. It is safe for concurrent use.
type Server struct {
	client redis.Scripter
	period time.Duration
	mux    *http.ServeMux

	mu        sync.Mutex
	pool      pool
	slots     *semaphore
	tasks     []*task            // the id of a task is its index + 1
	batches   []int              // number of tasks of the batch with id index + 1
	waiting   map[string][]*task // key: device; oldest task first
	token     int64
	freeSlots []int // free slot numbers, which only the external system checks
}

type pool struct {
	Capacity int `json:"capacity"`
}

type task struct {
	ID      int64           `json:"id"`
	Device  string          `json:"device"`
	State   string          `json:"state"`
	Output  json.RawMessage `json:"output"`
	payload json.RawMessage
	slot    int
	token   int64
}

// New returns a server whose devices are to report once in each period.
func New(client redis.Scripter, period time.Duration) *Server {
	s := &Server{client: client, period: period, mux: http.NewServeMux(), waiting: map[string][]*task{}}
	s.mux.HandleFunc("POST /v1/devices/{device}/report", s.report)
	s.mux.HandleFunc("GET /v1/pools/{pool}", s.getPool)
	s.mux.HandleFunc("PUT /v1/pools/{pool}", s.putPool)
	s.mux.HandleFunc("POST /v1/batches", s.createBatch)
	s.mux.HandleFunc("GET /v1/batches/{id}", s.getBatch)
	s.mux.HandleFunc("GET /v1/tasks", s.listTasks)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Server) getPool(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == nil {
		http.NotFound(w, r)
		return
	}
	writeJSON(w, http.StatusOK, s.pool)
}

func (s *Server) putPool(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := json.NewDecoder(r.Body).Decode(&s.pool); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.slots = newSemaphore(s.client, r.PathValue("pool"))
	for n := range s.pool.Capacity {
		s.freeSlots = append(s.freeSlots, n)
	}
	writeJSON(w, http.StatusOK, s.pool)
}

func (s *Server) createBatch(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Tasks []struct {
			Device  string          `json:"device"`
			Payload json.RawMessage `json:"payload"`
		} `json:"tasks"`
	}
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range b.Tasks {
		t := &task{ID: int64(len(s.tasks) + 1), Device: n.Device, State: "pending", payload: n.Payload}
		s.tasks = append(s.tasks, t)
		s.waiting[t.Device] = append(s.waiting[t.Device], t)
	}
	s.batches = append(s.batches, len(b.Tasks))
	writeJSON(w, http.StatusCreated, map[string]any{"id": len(s.batches), "tasks": len(b.Tasks)})
}

// batchTasks returns the tasks of a batch. If the batch does not exist, it returns none. The caller must hold mu.
func (s *Server) batchTasks(id string) []*task {
	n, err := strconv.Atoi(id)
	if err != nil || n < 1 || n > len(s.batches) {
		return nil
	}
	from := 0
	for _, size := range s.batches[:n-1] {
		from += size
	}
	return s.tasks[from : from+s.batches[n-1]]
}

func (s *Server) getBatch(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tasks, counts := s.batchTasks(r.PathValue("id")), map[string]int{}
	for _, t := range tasks {
		counts[t.State]++
	}
	writeJSON(w, http.StatusOK, map[string]any{"total": len(tasks), "counts": counts})
}

func (s *Server) listTasks(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	writeJSON(w, http.StatusOK, map[string]any{"tasks": s.batchTasks(r.URL.Query().Get("batch"))})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(v) // if it fails, the device reports again
}
