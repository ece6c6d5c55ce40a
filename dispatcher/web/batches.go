package web

func (w *Web) routeBatches() {}

func (w *Web) routeTasks() {}
