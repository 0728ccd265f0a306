"""Questions about your own documents: asked, queued and served."""
